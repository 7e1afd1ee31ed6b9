// Sets the chosen theme before the page is painted. Without a choice, the system's theme applies.
(() => {
  "use strict";
  const chosen = localStorage.getItem("steno-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
