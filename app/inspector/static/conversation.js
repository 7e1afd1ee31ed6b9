// Follows the conversation: says that a compaction runs, and shows what came of it. Without it the page is as it was.
(() => {
  "use strict";

  const LOOK_MS = 1_000;
  const IDLE_MS = 900_000; // Without news a page that nobody looks at costs nothing.
  const bar = document.querySelector("[data-status]");
  if (!bar) return;
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
    words = `Summarising ${what}${state.ahead ? " ahead of need" : ""}${state.seconds === null ? ", at another replica" : ""}`;
    began = state.seconds === null ? 0 : performance.now() - 1000 * state.seconds;
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

  let news = performance.now();
  const look = async () => {
    if (document.hidden) return;
    const answer = await fetch(bar.dataset.status).catch(() => null);
    if (answer?.redirected || performance.now() - news > IDLE_MS) clearInterval(looking); // The session may have ended.
    if (!answer?.ok || answer.redirected) return;
    const state = await answer.json();
    const isNews = updated !== undefined && updated !== state.updated;
    updated = state.updated;
    if (state.compacting) start(state);
    else stop();
    if (isNews || compacting !== state.compacting) news = performance.now();
    if (isNews || (compacting && !state.compacting)) reload();
    compacting = state.compacting;
  };
  const looking = setInterval(look, LOOK_MS);
  look();
})();
