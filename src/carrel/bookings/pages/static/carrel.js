// Only what the pages cannot do without a script: the theme, dragging and arrow keys on the timeline, the countdown,
// and the warning when the live map has lost its connection. Forms and links work without it.
"use strict";

(() => {
  const root = document.documentElement;

  // --- light or dark ---------------------------------------------------------------------------------------------

  const theme = document.querySelector("#theme");
  if (theme) {
    theme.hidden = false;
    theme.addEventListener("click", () => {
      const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const next = (root.dataset.theme || system) === "dark" ? "light" : "dark";
      root.dataset.theme = next;
      // The server reads the cookie, so that the next page does not first appear in the other theme.
      document.cookie = `carrel_theme=${next}; path=${root.dataset.basePath || "/"}; max-age=31536000; samesite=lax`;
    });
  }

  // --- countdown -------------------------------------------------------------------------------------------------

  const asDuration = (seconds) => {
    const minutes = Math.floor(Math.max(seconds, 0) / 60);
    if (!minutes) return "under a minute";
    const parts = [[Math.floor(minutes / 1440), "d"], [Math.floor(minutes / 60) % 24, "h"], [minutes % 60, "min"]];
    const first = parts.findIndex(([amount]) => amount);
    return parts.slice(first, first + 2).filter(([amount]) => amount).map(([amount, unit]) => `${amount} ${unit}`).join(" ");
  };
  const countDown = () => {
    for (const each of document.querySelectorAll("[data-until]")) {
      const words = asDuration((Date.parse(each.dataset.until) - Date.now()) / 1000);
      if (each.textContent !== words) each.textContent = words;
    }
  };
  setInterval(countDown, 15000);

  // --- the live map ----------------------------------------------------------------------------------------------

  const live = document.querySelector("#live");
  if (live) {
    const showConnection = (lost) => {
      live.classList.toggle("lost", lost);
      live.textContent = lost ? "No connection, trying again" : "Live";
    };
    document.body.addEventListener("htmx:sseOpen", () => showConnection(false));
    document.body.addEventListener("htmx:sseError", () => showConnection(true));
    document.body.addEventListener("htmx:sseClose", () => {
      live.classList.add("lost");
      live.textContent = "Not live: the map is open in other windows. Reload to follow it here.";
    });
    // Scroll to the GPU after a click on it, but not when a live update changes it.
    document.body.addEventListener("htmx:afterSwap", (event) => {
      const { target, requestConfig } = event.detail; // updates from the stream have neither
      const trigger = requestConfig && requestConfig.triggeringEvent;
      if (target && target.id === "gpu" && trigger && trigger.type === "click") target.scrollIntoView({ block: "nearest" });
    });
  }

  // --- the timeline ----------------------------------------------------------------------------------------------

  const form = document.querySelector("#book");
  const timeline = document.querySelector("#timeline");
  if (!form || !timeline) return;

  const fields = form.elements;
  const DAY_MS = 86400000;
  const dayAfter = (day, days) => new Date(Date.parse(`${day}T00:00Z`) + days * DAY_MS).toISOString().slice(0, 10);
  const daysBetween = (from, to) => Math.round((Date.parse(`${to}T00:00Z`) - Date.parse(`${from}T00:00Z`)) / DAY_MS);
  const modelOf = (cell) => cell.closest("svg").dataset.model;
  const cellsOf = (svg) => [...svg.querySelectorAll("a.day")];

  /** Puts the days into the form. A single day changes the start; the length stays the same. */
  const choose = (model, from, to) => {
    const [startDay, startTime] = fields.start.value.split("T");
    const [endDay, endTime] = fields.end.value.split("T");
    const length = startDay && endDay ? Math.max(daysBetween(startDay, endDay), 1) : 1;
    const [earliestDay, earliestTime] = form.dataset.earliest.split("T");
    const time = from === earliestDay ? earliestTime : "00:00";
    fields.model.value = model;
    fields.start.value = `${from}T${time}`;
    fields.end.value = from === to ? `${dayAfter(from, length)}T${time}` : `${dayAfter(to, 1)}T${time}`;
    fields.start.dispatchEvent(new Event("change", { bubbles: true }));
  };

  const show = (model, from, to) => {
    for (const cell of timeline.querySelectorAll("a.day")) {
      const day = cell.dataset.day;
      cell.classList.toggle("chosen", modelOf(cell) === model && from <= day && day <= to);
    }
  };
  const reveal = () => {
    const box = form.getBoundingClientRect();
    if (box.top < 0 || box.bottom > innerHeight) form.scrollIntoView({ block: "center" });
  };

  // The server computes the position of the selection; the dashed frame moves there.
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id !== "verdict") return;
    const verdict = document.querySelector("#verdict [data-model]");
    show("", "", "");
    for (const svg of timeline.querySelectorAll("svg.lanes")) {
      const frame = svg.querySelector(".selection");
      const here = verdict && svg.dataset.model === verdict.dataset.model;
      frame.setAttribute("x", here ? verdict.dataset.left : "0");
      frame.setAttribute("width", here ? verdict.dataset.width : "0");
    }
  });

  // Dragging. On a touch screen a finger scrolls, and a tap chooses.
  let drag = null;
  let isFinger = false;
  const cellAt = (svg, x) =>
    cellsOf(svg).find((cell) => {
      const box = cell.querySelector("rect").getBoundingClientRect();
      return box.left <= x && x < box.right;
    });
  const bounds = () => [drag.from.dataset.day, drag.to.dataset.day].sort();

  timeline.addEventListener("pointerdown", (event) => {
    isFinger = event.pointerType === "touch";
    const svg = event.target.closest("svg[data-model]");
    if (!svg || event.button || isFinger || event.target.closest("a:not(.day)")) return;
    const cell = cellAt(svg, event.clientX);
    if (!cell) return;
    drag = { svg, from: cell, to: cell };
    event.preventDefault();
  });
  addEventListener("pointermove", (event) => {
    const cell = drag && cellAt(drag.svg, event.clientX);
    if (!cell || cell === drag.to) return;
    drag.to = cell;
    show(modelOf(cell), ...bounds());
  });
  addEventListener("pointerup", () => {
    if (!drag) return;
    choose(drag.svg.dataset.model, ...bounds());
    drag = null;
  });
  addEventListener("pointercancel", () => { drag = null; });
  timeline.addEventListener("dragstart", (event) => event.preventDefault());
  timeline.addEventListener("click", (event) => {
    const cell = event.target.closest("a.day");
    if (!cell || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (isFinger || !event.detail) {
      choose(modelOf(cell), cell.dataset.day, cell.dataset.day);
      reveal();
    }
  });

  // Arrow keys. Tab reaches one day of each model; arrow keys move from there, and with Shift they select days.
  let anchor = null;
  const goTo = (cell) => {
    for (const other of cellsOf(cell.closest("svg"))) other.tabIndex = other === cell ? 0 : -1;
    cell.focus();
  };
  timeline.addEventListener("keydown", (event) => {
    const cell = event.target.closest && event.target.closest("a.day");
    if (!cell) return;
    const row = cellsOf(cell.closest("svg"));
    const place = row.indexOf(cell);
    const model = modelOf(cell);
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(model, ...[anchor || cell.dataset.day, cell.dataset.day].sort());
      anchor = null;
      reveal();
      form.querySelector("[type=submit]").focus();
      return;
    }
    const rows = [...timeline.querySelectorAll("svg[data-model]")];
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 7, PageUp: -7, Home: -Infinity, End: Infinity };
    const jumps = { ArrowDown: 1, ArrowUp: -1 };
    let next = null;
    if (event.key in steps) next = row[Math.min(Math.max(place + steps[event.key], 0), row.length - 1)];
    if (event.key in jumps) {
      const svg = rows[rows.indexOf(cell.closest("svg")) + jumps[event.key]];
      next = svg && svg.querySelector(`a.day[data-day="${cell.dataset.day}"]`);
    }
    if (!next) return;
    event.preventDefault();
    if (event.shiftKey && event.key in steps) {
      anchor = anchor || cell.dataset.day;
      show(model, ...[anchor, next.dataset.day].sort());
    } else {
      anchor = null;
      show("", "", "");
    }
    goTo(next);
  });
})();

// A list of people from a file goes into the text field, where it can be seen before it is sent.
(() => {
  for (const chooser of document.querySelectorAll("input[type=file][data-into]")) {
    chooser.closest("label").hidden = false;
    chooser.addEventListener("change", async () => {
      const [file] = chooser.files;
      if (file) document.getElementById(chooser.dataset.into).value = await file.text();
    });
  }
})();
