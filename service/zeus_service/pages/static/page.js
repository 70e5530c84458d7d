// What changes while a page is open: the page is asked for again, with the ETag of what it shows.
"use strict";

// At most 20 requests a minute: for the page, and, if it has changed, for its figures and for runs that are compared.
const POLL_MS = 10000;

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
    element.title = `${local} (${element.dateTime})`;
  }
}

// --- requests --------------------------------------------------------------------------------------

let pageTag = null; // the ETag of the latest page
let page = null; // the latest page
const texts = new WeakMap(); // each section as the service sent it
for (const section of document.querySelectorAll("[data-live]")) texts.set(section, section.innerHTML);
const answers = new Map(); // by its address, each answer with figures, and its ETag
// Plotly is the last script: figures are asked for while it is on its way.
const loaded = new Promise((resolve) => { document.addEventListener("DOMContentLoaded", resolve); });

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
  const response = await ask(location.pathname + location.search, pageTag);
  if (response) {
    page = new DOMParser().parseFromString(await response.text(), "text/html");
    pageTag = response.headers.get("ETag");
  }
  if (page) for (const section of document.querySelectorAll("[data-live]")) replace(section, page.getElementById(section.id));
  return Boolean(response);
}

function replace(section, fresh) {
  if (!fresh || texts.get(section) === fresh.innerHTML) return;
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && selection.containsNode(section, true);
  // It is replaced once nothing is selected there.
  if (isSelected || [...section.querySelectorAll("input")].some((each) => each.checked !== each.defaultChecked)) return;
  texts.set(section, fresh.innerHTML);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const address = focused?.getAttribute("href");
  const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  section.replaceChildren(...fresh.cloneNode(true).childNodes);
  section.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (address) section.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus({ preventScroll: true });
  showTimes(section);
}

async function refreshFigures() {
  const places = [...document.querySelectorAll("[data-figure]")];
  const addresses = new Set(places.map((place) => place.dataset.from));
  await Promise.all([...addresses].map(async (address) => {
    const response = await ask(address, answers.get(address)?.tag);
    if (!response) return;
    const figures = await response.json();
    await loaded;
    answers.set(address, { figures, tag: response.headers.get("ETag") });
    drawFigures(places.filter((place) => place.dataset.from === address));
  }));
}

function drawFigures(places) {
  const figureOf = (place) => answers.get(place.dataset.from)?.figures[place.dataset.figure];
  const shown = [...places].filter((place) => figureOf(place) && !place.closest("details:not([open])"));
  // Those without data first: they leave their space to the others.
  shown.sort((one, other) => Math.sign(figureOf(one).data.length) - Math.sign(figureOf(other).data.length));
  for (const place of shown) zeusFigures.draw(place, figureOf(place));
}

for (const details of document.querySelectorAll("details")) {
  details.addEventListener("toggle", () => drawFigures(details.querySelectorAll("[data-figure]")));
}

const live = document.getElementById("live");

async function refresh(isNew = false) {
  if (!document.hidden) {
    try {
      if (isNew || await refreshPage()) await refreshFigures();
      live.hidden = true;
    } catch (error) {
      pageTag = null; // figures may be missing
      live.textContent = "The service is not responding; retrying";
      live.hidden = false;
      console.info(`not refreshed: ${error.message}`);
    }
  }
  setTimeout(() => refresh(), POLL_MS);
}

showTimes(document);
if (document.querySelector("[data-live]")) refresh(true);
if (document.querySelector("[data-reload]")) setTimeout(() => location.reload(), 5000);
setInterval(() => showTimes(document), 5000);
