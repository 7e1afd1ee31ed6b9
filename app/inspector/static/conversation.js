// Follows the conversation: shows each new request and what came of it. Without it the page is as it was.
(() => {
  "use strict";

  const LOOK_MS = 1_000;
  const IDLE_MS = 900_000; // Without news a page that nobody looks at costs nothing.
  const followed = document.querySelector("[data-status]");
  if (!followed) return;

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

  let updated; // When the latest request was stored, as the page shows it.
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
