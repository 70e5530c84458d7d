// What changes while a page is open: parts and figures of it, asked for with the ETag of what is shown.
"use strict";

const SOON_MS = 2000;
const LATER_MS = 10000;
const shown = new WeakMap(); // the address and the ETag of what each section and figure shows

// --- times -----------------------------------------------------------------------------------------

const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
const SPANS = [["year", 31536000], ["month", 2592000], ["week", 604800], ["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function showTimes(root) {
  for (const element of root.querySelectorAll("time[data-time]")) {
    const instant = Number(element.dataset.time);
    const seconds = instant - Date.now() / 1000;
    const [unit, span] = SPANS.find(([, span]) => Math.abs(seconds) >= span) || SPANS.at(-1);
    const ago = Math.abs(seconds) < 5 ? "just now" : relative.format(Math.trunc(seconds / span), unit);
    const local = new Date(instant * 1000).toLocaleString();
    const text = "date" in element.dataset ? local : ago;
    if (element.textContent !== text) element.textContent = text;
    if (!element.dataset.titled) {
      element.dataset.titled = "1";
      element.title = `${local} (${element.title})`;
    }
  }
}

// --- requests --------------------------------------------------------------------------------------

async function ask(place, address) {
  const last = shown.get(place);
  const headers = last?.address === address ? { "If-None-Match": last.tag } : {};
  const response = await fetch(address, { headers, cache: "no-store", credentials: "same-origin", redirect: "manual" });
  if (response.status === 304) return null;
  if (response.type === "opaqueredirect" || response.status === 401) {
    location.reload(); // the sign-in has expired
    throw new Error("signed out");
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response;
}

function partAddress(section) {
  const address = new URL(location.href);
  const [name, value] = section.dataset.live.split("=");
  address.searchParams.set(name, value);
  address.hash = "";
  return address.pathname + address.search;
}

async function refreshPart(section) {
  const address = partAddress(section);
  const response = await ask(section, address);
  if (!response) return;
  const text = await response.text();
  if (partAddress(section) !== address) return; // the search has changed meanwhile
  if (section.contains(document.activeElement) && document.activeElement.matches("input, select")) return; // somebody is writing there: later
  shown.set(section, { address, tag: response.headers.get("ETag") });
  replace(section, text);
}

function replace(section, text) {
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const address = focused?.getAttribute("href");
  const opened = [...section.querySelectorAll("details")].map((each) => each.open);
  const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const parsed = new DOMParser().parseFromString(text, "text/html");
  section.replaceChildren(...parsed.body.childNodes);
  section.querySelectorAll("details").forEach((each, index) => { each.open = opened[index] ?? each.open; });
  section.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (address) section.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus({ preventScroll: true });
  showTimes(section);
}

async function refreshFigure(place) {
  const address = place.dataset.figure;
  const response = await ask(place, address);
  if (!response) return;
  const figure = await response.json();
  shown.set(place, { address, tag: response.headers.get("ETag") });
  const job = address.split("/figures/")[0];
  zeusFigures.draw(place, figure, job.includes("/trial/") ? null : (number) => location.assign(`${job}/trial/${number}`));
}

// --- the rounds ------------------------------------------------------------------------------------

const live = document.getElementById("live");
let round = 0;

async function refresh() {
  if (!document.hidden) {
    const inFlight = document.querySelector("[data-in-flight]") !== null;
    const all = !inFlight || round % 3 === 0;
    const sections = [...document.querySelectorAll("[data-live]")].filter((each) => all || "often" in each.dataset);
    const places = [...document.querySelectorAll("[data-figure]")].filter((each) => all || each.dataset.figure.includes("/trial/"));
    try {
      for (const section of sections) await refreshPart(section);
      for (const place of places) await refreshFigure(place);
      live.hidden = true;
    } catch (error) {
      live.textContent = "The service does not answer; trying again";
      live.hidden = false;
      console.info(`not refreshed: ${error.message}`);
    }
    showTimes(document);
    round += 1;
  }
  const soon = document.querySelector("[data-in-flight]") !== null;
  setTimeout(refresh, soon ? SOON_MS : LATER_MS);
}

// --- the search ------------------------------------------------------------------------------------

function searchWhileTyping(input) {
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const address = new URL(location.href);
      address.searchParams.set("q", input.value);
      address.searchParams.delete("page");
      history.replaceState(null, "", address);
      for (const section of document.querySelectorAll("[data-live]")) await refreshPart(section).catch(() => {});
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
Promise.all([...document.querySelectorAll("[data-figure]")].map((place) => refreshFigure(place).catch(() => {})))
  .finally(() => setTimeout(refresh, SOON_MS));
setInterval(() => showTimes(document), 5000);
