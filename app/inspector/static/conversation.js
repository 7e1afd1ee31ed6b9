// Updates the page after each new request. Without this script, the page stays as it was loaded.
(() => {
  "use strict";

  const LOOK_MS = 1_000;
  const IDLE_MS = 900_000; // After this time without a new request, the page stops polling.
  const followed = document.querySelector("[data-status]");
  if (!followed) return;

  // A part that has the focus is not replaced, so that text typed there is not lost.
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
    dispatchEvent(new Event("resize")); // New content may need scrolling: see showScrolling.
  };

  let updated; // Time of the latest request that the page shows.
  let news = performance.now();
  const look = async () => {
    if (document.hidden) return;
    const answer = await fetch(followed.dataset.status).catch(() => null);
    if (answer?.redirected || performance.now() - news > IDLE_MS) clearInterval(looking); // The session may have ended.
    if (!answer?.ok || answer.redirected) return;
    const latest = (await answer.json()).updated;
    if (updated !== undefined && updated !== latest) {
      news = performance.now();
      reload();
    }
    updated = latest;
  };
  const looking = setInterval(look, LOOK_MS);
  look();
})();
