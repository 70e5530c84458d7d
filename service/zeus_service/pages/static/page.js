// What changes while a page is open: the page is asked for again, with the ETag of what it shows.
"use strict";

const SOON_MS = 2000;
const LATER_MS = 10000;

// --- times -----------------------------------------------------------------------------------------

const relative = new Intl.RelativeTimeFormat("en");
const DATE = { dateStyle: "medium", timeStyle: "short" };
const SPANS = [["year", 31536000], ["month", 2592000], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function showTimes(root) {
  for (const element of root.querySelectorAll("time[data-time]")) {
    const instant = Number(element.dataset.time);
    const seconds = instant - Date.now() / 1000;
    const [unit, span] = SPANS.find(([, span]) => Math.abs(seconds) >= span) || SPANS.at(-1);
    const ago = Math.abs(seconds) < 5 ? "just now" : relative.format(Math.round(seconds / span), unit);
    const local = new Date(instant * 1000).toLocaleString("en", DATE);
    const text = "date" in element.dataset ? local : ago;
    if (element.textContent !== text) element.textContent = text;
    if (!element.dataset.titled) {
      element.dataset.titled = "1";
      element.title = `${local} (${element.title})`;
    }
  }
}

// --- requests --------------------------------------------------------------------------------------

let shown = {}; // the address and the ETag of what the page shows
const texts = new WeakMap(); // each section as the service sent it
for (const section of document.querySelectorAll("[data-live]")) texts.set(section, section.innerHTML);
const tags = new WeakMap(); // the ETag of what each figure shows

async function ask(address, tag) {
  const headers = tag ? { "If-None-Match": tag } : {};
  const response = await fetch(address, { headers, cache: "no-store", credentials: "same-origin", redirect: "manual" });
  if (response.status === 304) return null;
  if (response.type === "opaqueredirect" || response.status === 401) {
    location.reload(); // the sign-in has expired
    throw new Error("signed out");
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response;
}

async function refreshPage() {
  const address = location.pathname + location.search;
  const response = await ask(address, shown.address === address ? shown.tag : null);
  if (!response) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (location.pathname + location.search !== address) return false; // the search has changed meanwhile
  shown = { address, tag: response.headers.get("ETag") };
  for (const section of document.querySelectorAll("[data-live]")) replace(section, page.getElementById(section.id));
  return true;
}

function replace(section, fresh) {
  if (!fresh || texts.get(section) === fresh.innerHTML) return;
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(section, true);
  if (isSelected || [...section.querySelectorAll("input")].some((each) => each.checked !== each.defaultChecked)) {
    shown = {}; // it is replaced once nothing is selected there
    return;
  }
  texts.set(section, fresh.innerHTML);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const address = focused?.getAttribute("href");
  const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  section.replaceChildren(...fresh.childNodes);
  section.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (address) section.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus({ preventScroll: true });
  showTimes(section);
}

async function refreshFigure(place) {
  const address = place.dataset.figure;
  const response = await ask(address, tags.get(place));
  if (!response) return;
  const job = address.split("/figures/")[0];
  zeusFigures.draw(place, await response.json(), job.includes("/trial/") ? null : (number) => location.assign(`${job}/trial/${number}`));
  tags.set(place, response.headers.get("ETag"));
}

const isOpen = (place) => !place.closest("details:not([open])");
for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => [...details.querySelectorAll("[data-figure]")].filter(isOpen).forEach(refreshFigure));
}

const live = document.getElementById("live");

async function refresh() {
  if (!document.hidden) {
    try {
      if (await refreshPage()) {
        await Promise.all([...document.querySelectorAll("[data-figure]")].filter(isOpen).map(refreshFigure));
      }
      live.hidden = true;
    } catch (error) {
      shown = {}; // figures may be missing
      live.textContent = "The service does not answer; trying again";
      live.hidden = false;
      console.info(`not refreshed: ${error.message}`);
    }
    showTimes(document);
  }
  const soon = document.querySelector("[data-in-flight]") !== null;
  setTimeout(refresh, soon ? SOON_MS : LATER_MS);
}

// --- the search ------------------------------------------------------------------------------------

function searchWhileTyping(input) {
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const address = new URL(location.href);
      address.searchParams.set("q", input.value);
      address.searchParams.delete("page");
      history.replaceState(null, "", address);
      refreshPage().catch(() => {});
    }, 200);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.matches("input, select, textarea")) {
      event.preventDefault();
      input.focus();
    }
  });
}

zeusFigures.setTheme(document.getElementById("theme"));
showTimes(document);
const search = document.getElementById("search");
if (search) searchWhileTyping(search);
if (document.querySelector("[data-live]")) refresh();
setInterval(() => showTimes(document), 5000);
