// Before anything is painted: the theme that was chosen, if the system's is not to decide.
(() => {
  "use strict";
  const chosen = localStorage.getItem("steno-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
