// Figures: traces and layouts come from the service, colours of text and grid from the style sheet.
"use strict";

const zeusFigures = (() => {
  const CONFIG = { displayModeBar: false, responsive: true, displaylogo: false, showTips: false };

  // What all figures have in common. The style sheet colours their text and their grid.
  function withCommon(layout) {
    const isNarrow = matchMedia("(max-width: 640px)").matches;
    const inTwoColumns = { maxheight: 120, entrywidth: 0.45, tracegroupgap: 0, entrywidthmode: "fraction" };
    const font = { size: 12, family: getComputedStyle(document.body).fontFamily };
    const axis = { automargin: true, title: { standoff: 8 } };
    // Superscripts need inline styles, which the policy forbids.
    const exponents = { exponentformat: "e", minexponent: 5 };
    const common = {
      margin: { l: 56, r: 12, t: 12, b: 44 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font,
      hovermode: "closest",
      hoverlabel: { font },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, ...(isNarrow ? inTwoColumns : { maxheight: 60 }) },
      xaxis: { ...axis, ...exponents, zeroline: false },
      yaxis: { ...axis, ...exponents, rangemode: "tozero" },
      // A finger that moves over a figure scrolls the page.
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
    // With the same uirevision, a zoom lasts when the figure is drawn again.
    const own = { uirevision: true, ...structuredClone(layout), template: { layout: common } };
    if (isNarrow && own.xaxis.ticktext) Object.assign(own.xaxis, thinOut(own.xaxis));
    return own;
  }

  // A narrow axis has half the ticks: those with a name, and no others beside them.
  function thinOut({ tickvals, ticktext }) {
    const isNamed = (index) => ticktext[index]?.includes("<br>");
    const isKept = (_, index) => isNamed(index) || (index % 2 === 0 && !isNamed(index - 1) && !isNamed(index + 1));
    return { tickvals: tickvals.filter(isKept), ticktext: ticktext.filter(isKept) };
  }

  function draw(place, figure) {
    const box = place.closest(".figure");
    box.querySelector(".note").textContent = figure.note;
    if (figure.title) box.querySelector("h2").textContent = figure.title;
    box.classList.toggle("empty", figure.data.length === 0);
    box.classList.toggle("tall", figure.layout.grid?.rows > 1);
    place.setAttribute("aria-label", [box.querySelector("h2").textContent, figure.note].filter(Boolean).join(". "));
    if (figure.data.length === 0) {
      Plotly.purge(place);
      place.replaceChildren();
      return;
    }
    const table = box.querySelector("details");
    table.hidden = false;
    table.ontoggle = () => { if (table.open) fill(table.querySelector(".scroll"), figure); };
    table.ontoggle();
    const first = !place.classList.contains("js-plotly-plot");
    Plotly.react(place, figure.data, withCommon(figure.layout), CONFIG);
    if (!first) return;
    place.on("plotly_afterplot", () => scaleInPrint(place));
    table.addEventListener("toggle", () => Plotly.Plots.resize(place)); // it takes some of its height
    place.on("plotly_click", (event) => {
      const number = event.points[0].customdata; // of a run, on its job's page
      if (number !== undefined) location.assign(`${location.pathname}/trial/${number}`);
    });
  }

  // What a figure shows, as a table that the keyboard reaches.
  function fill(region, { data, layout }) {
    const table = document.createElement("table");
    const addRow = (parent, kind, texts) => {
      const row = parent.appendChild(document.createElement("tr"));
      for (const text of texts) row.appendChild(document.createElement(kind)).textContent = text;
    };
    addRow(table.createTHead(), "th", ["curve", layout.xaxis.title.text, "value"]);
    const body = table.createTBody();
    for (const trace of data.filter((each) => each.hoverinfo !== "skip")) {
      const { title, ticksuffix = "" } = layout[`yaxis${(trace.yaxis ?? "y").slice(1)}`];
      const full = title.text.startsWith(trace.name) ? title.text : `${trace.name}: ${title.text}`;
      const name = data.some((each) => each.yaxis) ? full : trace.name;
      trace.x.forEach((x, index) => {
        const number = trace.y[index];
        if (number === null) return;
        addRow(body, "td", [name, x, trace.hovertext?.[index] ?? `${Number(number.toPrecision(4))}${ticksuffix}`]);
      });
    }
    region.replaceChildren(table);
  }

  // A printed page is narrower: with a box of its own, a drawing is made smaller, not cut.
  function scaleInPrint(place) {
    for (const drawing of place.querySelectorAll(".main-svg")) {
      drawing.setAttribute("viewBox", `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`);
    }
  }

  return { draw };
})();
