// Conveniences: without this script, every page can be read and every form sent.
(() => {
  "use strict";

  const THEMES = { "": "as the system", light: "light", dark: "dark" };

  const showTheme = () => {
    const chosen = document.documentElement.dataset.theme || "";
    for (const name of document.querySelectorAll("[data-theme-name]")) name.textContent = THEMES[chosen];
  };

  const switchTheme = () => {
    const order = Object.keys(THEMES);
    const next = order[(order.indexOf(document.documentElement.dataset.theme || "") + 1) % order.length];
    if (next) {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("steno-theme", next);
    } else {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("steno-theme");
    }
    showTheme();
  };

  // Lists: j and k move through the rows of every [data-list], Enter opens a row's [data-open].
  const rows = () => [...document.querySelectorAll("[data-list] > *")].filter((row) => row.querySelector("[data-open]"));

  const move = (step) => {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))];
    next.querySelector("[data-open]").focus();
    next.scrollIntoView({ block: "nearest" });
  };

  const PLACES = { o: "/ui", c: "/ui/conversations", s: "/" };
  let went = 0; // Time of the last press of `g`.

  const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      document.querySelector("details.menu[open]")?.removeAttribute("open");
      if (isTyping(event.target)) event.target.blur();
      return;
    }
    if (isTyping(event.target)) return;
    const wanted = document.querySelector(`[data-focus-key="${CSS.escape(event.key)}"]`);
    if (wanted) {
      event.preventDefault();
      wanted.focus();
      wanted.select?.();
    } else if (event.key === "j" || event.key === "k") {
      event.preventDefault();
      move(event.key === "j" ? 1 : -1);
    } else if (event.key === "g") {
      went = event.timeStamp;
    } else if (PLACES[event.key] && event.timeStamp - went < 1000) {
      location.assign(PLACES[event.key]);
    }
  };

  const onClick = (event) => {
    if (event.target.closest("[data-theme-switch]")) switchTheme();
    const copy = event.target.closest("[data-copy]");
    if (copy) copyFrom(copy);
    const menu = document.querySelector("details.menu[open]");
    if (menu && !menu.contains(event.target)) menu.removeAttribute("open");
  };

  // [data-copy] has the id of the element whose text is copied.
  const copyFrom = async (button) => {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent.trim());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C";
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    }
    setTimeout(() => { button.textContent = label; }, 1500);
  };

  // The choice of a filter sends the filter's form.
  const onChange = (event) => {
    if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  };

  // The arrow keys scroll a table that is larger than its box only if the box can have the focus.
  const showScrolling = () => {
    for (const box of document.querySelectorAll(".scroll")) {
      const isLarger = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (isLarger && !box.querySelector("a, button")) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };

  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  document.addEventListener("change", onChange);
  document.addEventListener("toggle", showScrolling, true);
  addEventListener("resize", showScrolling);
  showScrolling();
  showTheme();
})();
