// What changes while a page is open: the page is asked for again, with the ETag of what it shows.
"use strict";

// At most 20 requests a minute: for the page, and, if it has changed, for its figures.
const SOON_MS = 6000;
const LATER_MS = 10000;

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

let pageTag = null; // the ETag of what the page shows
const texts = new WeakMap(); // each section as the service sent it
for (const section of document.querySelectorAll("[data-live]")) texts.set(section, section.innerHTML);
let figuresTag = null; // the ETag of what the figures show
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
  if (!response) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const section of document.querySelectorAll("[data-live]")) replace(section, page.getElementById(section.id));
  pageTag = response.headers.get("ETag");
  return true;
}

function replace(section, fresh) {
  if (texts.get(section) === fresh.innerHTML) return;
  texts.set(section, fresh.innerHTML);
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const address = focused?.getAttribute("href");
  const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  section.replaceChildren(...fresh.childNodes);
  section.querySelectorAll(".scroll").forEach((each, index) => { each.scrollLeft = scrolled[index] ?? 0; });
  if (address) section.querySelector(`a[href="${CSS.escape(address)}"]`)?.focus({ preventScroll: true });
  showTimes(section);
}

// All figures of a page are answered together; the last part of each one's address is its name.
async function refreshFigures() {
  const places = [...document.querySelectorAll("[data-figure]")];
  if (!places.length) return;
  const address = places[0].dataset.figure.replace(/\/[^/]*$/, "");
  const response = await ask(address, figuresTag);
  if (!response) return;
  const figures = await response.json();
  await loaded;
  const job = address.replace(/\/figures$/, "");
  const open = job.includes("/trial/") ? null : (number) => location.assign(`${job}/trial/${number}`);
  for (const place of places) zeusFigures.draw(place, figures[place.dataset.figure.split("/").at(-1)], open);
  figuresTag = response.headers.get("ETag");
}

const live = document.getElementById("live");

async function refresh(isNew = false) {
  if (!document.hidden) {
    try {
      if (isNew || await refreshPage()) await refreshFigures();
      live.hidden = true;
    } catch (error) {
      pageTag = null; // figures may be missing
      live.textContent = "The service does not answer; trying again";
      live.hidden = false;
      console.info(`not refreshed: ${error.message}`);
    }
    showTimes(document);
  }
  const soon = document.querySelector("[data-in-flight]") !== null;
  setTimeout(() => refresh(), soon ? SOON_MS : LATER_MS);
}

zeusFigures.setTheme(document.getElementById("theme"));
showTimes(document);
if (document.querySelector("[data-live]")) refresh(true);
setInterval(() => showTimes(document), 5000);
