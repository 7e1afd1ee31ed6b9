"""axe-core on a page: what is wrong with it for those who use it by keyboard, by screen reader or in large."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from playwright.async_api import Page

from tests.browser.conftest import DESK, PHONE

SCRIPT = (files("axe_playwright_python") / "axe.min.js").read_text()
RUN = """async () => {
  const settled = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  await settled();
  const beyond = axe.getRules(["experimental"]).map((rule) => [rule.ruleId, { enabled: true }]);
  const rules = { ...Object.fromEntries(beyond), "hidden-content": { enabled: false } };
  const results = await axe.run(document, { resultTypes: ["violations", "incomplete"], rules });

  // axe takes whatever is behind the words of a drawing for a picture. Here it is the colour of a panel.
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([red, green, blue]) => [red, green, blue]
    .map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = numbers(getComputedStyle(each).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    throw new Error("nothing is behind it");
  };
  const isLegible = (node) => {
    const element = document.querySelector(node.target[0]);
    if (!element.closest("svg")) return false;
    const [one, other] = [numbers(getComputedStyle(element).fill), behind(element)].map(luminance);
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) >= 4.5;
  };
  for (const each of results.incomplete) {
    if (each.id === "color-contrast") each.nodes = each.nodes.filter((node) => !isLegible(node));
  }
  return [...results.violations, ...results.incomplete].filter((each) => each.nodes.length);
}"""
"""With the rules that are experimental, too, but the one that lists what is hidden."""


async def findings(page: Page) -> list[str]:
    """What axe finds, and what neither it nor we can decide, in both themes at both widths. Nothing may move."""
    found = []
    for width in (DESK["width"], PHONE["width"]):
        for theme in ("light", "dark"):
            await page.emulate_media(color_scheme=theme)
            found += [f"{width} {theme} {each}" for each in await findings_at(page, width)]
    return found


async def findings_at(page: Page, width: int) -> list[str]:
    """At one width, in the theme that it has."""
    # All of it in view: nothing lies under the bar at the top, or is scrolled away.
    await page.set_viewport_size({"width": width, "height": 15_000})
    await page.evaluate(SCRIPT)
    return [_told(each) for each in await page.evaluate(RUN)]


def _told(finding: dict[str, Any]) -> str:
    nodes = [f"{node['target']} {_why(node)}" for node in finding["nodes"]]
    return f"{finding['id']} {len(nodes)}: " + "; ".join(nodes[:4])


def _why(node: dict[str, Any]) -> str:
    return " ".join(check["message"] for check in (*node["any"], *node["all"], *node["none"]))
