// Follows the conversation: says that a compaction runs, and shows what came of it. Without it the page is as it was.
(() => {
  "use strict";

  const bar = document.querySelector("[data-events]");
  if (!bar || !window.EventSource) return;
  const said = bar.querySelector("[data-said]");
  let updated; // When the latest request was stored, as the page shows it.
  let compacting = false;
  let began = 0;
  let ticking = 0;
  let words = "";

  const show = () => {
    said.textContent = began ? `${words} … ${((performance.now() - began) / 1000).toFixed(1)} s` : `${words} …`;
  };

  const start = (state) => {
    const what = state.messages ? `${state.messages} messages` : "older messages";
    words = `Summarising ${what}${state.ahead ? " ahead of need" : ""}${state.seconds === undefined ? ", at another replica" : ""}`;
    began = state.seconds === undefined ? 0 : performance.now() - 1000 * state.seconds;
    bar.hidden = false;
    show();
    clearInterval(ticking);
    ticking = setInterval(show, 100);
  };

  const stop = () => {
    clearInterval(ticking);
    bar.hidden = true;
  };

  // Whoever is writing keeps what he wrote: a part that holds the focus stays as it is.
  const reload = async () => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.getElementById(part.id);
      if (!fresh || part.contains(document.activeElement)) continue;
      const open = new Set([...part.querySelectorAll("details[open]")].map((each) => [...part.querySelectorAll("details")].indexOf(each)));
      part.replaceChildren(...fresh.childNodes);
      part.querySelectorAll("details").forEach((each, place) => { each.open = open.has(place); });
    }
    dispatchEvent(new Event("resize")); // What is new may be larger than its place.
  };

  const events = new EventSource(bar.dataset.events);
  events.addEventListener("state", (event) => {
    const state = JSON.parse(event.data);
    const isNews = updated !== undefined && updated !== state.updated;
    updated = state.updated;
    if (state.compacting) start(state);
    else stop();
    if (isNews || (compacting && !state.compacting)) reload();
    compacting = state.compacting;
  });
  events.addEventListener("idle", () => events.close());
  addEventListener("pagehide", () => events.close());
})();
