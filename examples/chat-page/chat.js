// The page: sends the whole history each time, as any client does, and shows what Steno did to it.
import { eventsOf, StenoError } from "./steno.js";

const $ = (id) => document.getElementById(id);
const STATUSES = { full: "nothing left out", summarized: "summarised", trimmed: "shortened", bypassed: "not looked at", pending: "summarising" };
const number = new Intl.NumberFormat("en");
const WORDS = "the customer asked about an order that was sent to the old address and the clerk wrote down what was agreed";

let history = [];
let conversation = newName();
let summaries = []; // The ids of those that the last answer was given with.
let running = null; // The AbortController of the answer that is coming.

function newName() {
  const bytes = crypto.getRandomValues(new Uint8Array(6));
  return `chat-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

// Whoever reads at the end stays there; whoever has scrolled up is left in peace.
function atEnd(change) {
  const following = innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
  const result = change();
  if (following) toEnd();
  return result;
}

const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);

function append(item) {
  atEnd(() => $("messages").append(item));
  return item;
}

function showStatus(status, reason = "") {
  $("status").dataset.status = status;
  $("status").textContent = STATUSES[status] ?? status;
  $("status").title = reason;
}

function showContext(context) {
  const { forwarded, saved, window } = context.tokens;
  const share = Math.min(100, Math.round((100 * forwarded) / window));
  $("pressure").hidden = false;
  $("fill").style.width = `${share}%`;
  $("fill").parentElement.setAttribute("aria-valuenow", share);
  $("figures").textContent = `${number.format(forwarded)} of ${number.format(window)} tokens` + (saved ? `, ${number.format(saved)} saved` : "");
  $("inspect").hidden = false;
  // A link, not a fetch: what Steno stores is shared with pages of other origins only where server.allowed_origins lists them.
  $("inspect").href = `${base()}/ui/conversations/${encodeURIComponent(context.conversation_id)}`;
  showStatus(context.status, context.reason ?? "");
}

// One card for each compaction: it says what happens while it happens, and then what came of it.
function compactionCard() {
  const item = append(element("li", "compaction"));
  const since = performance.now();
  return {
    show(event) {
      const seconds = ((performance.now() - since) / 1000).toFixed(1);
      item.classList.toggle("running", event.type === "compaction_started");
      item.classList.toggle("failed", event.type === "compaction_failed");
      if (event.type === "compaction_started") {
        item.textContent = `Summarising ${event.messages.summarizing} earlier messages\u2026`;
      } else if (event.type === "compaction_completed") {
        item.textContent = `${summarised(event.tokens)}, ${seconds} s`;
      } else {
        item.textContent = `No summary could be made (${event.reason}). The conversation goes on with all of it.`;
      }
    },
  };
}

const summarised = (tokens) => `Earlier messages are summarised: ${number.format(tokens.estimated)} \u2192 ${number.format(tokens.forwarded)} tokens`;

// A summary that was made ahead, after an earlier answer: nobody waited for it, so no event spoke of it.
function showNewSummary(context, before) {
  const isNew = context.chunks.some((id) => !summaries.includes(id));
  summaries = context.chunks;
  if (isNew) before?.before(element("li", "compaction", summarised(context.tokens)));
}

const base = () => $("address").value.replace(/\/+$/, "");

async function ask(signal) {
  const headers = { "content-type": "application/json", "x-context-conversation-id": conversation };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const body = JSON.stringify({ model: $("model").value, messages: history, stream: true });
  return fetch(`${base()}/v1/chat/completions`, { method: "POST", headers, body, signal });
}

async function answer() {
  running = new AbortController();
  setBusy(true);
  let item = null;
  let card = null;
  let text = "";
  try {
    const response = await ask(running.signal);
    if (response.headers.get("x-context-status")) showStatus(response.headers.get("x-context-status"));
    for await (const event of eventsOf(response)) {
      if (event.type === "compaction") (card ??= compactionCard()).show(event.event);
      if (event.type === "status") showStatus(event.status);
      if (event.type === "context") {
        showContext(event.context);
        showNewSummary(event.context, card ? null : item);
      }
      if (event.type === "text") {
        item ??= append(element("li", "assistant"));
        text += event.text;
        atEnd(() => { item.textContent = text; });
      }
    }
    history.push({ role: "assistant", content: text });
  } catch (error) {
    showError(error, text);
  } finally {
    running = null;
    setBusy(false);
  }
}

function showError(error, text) {
  if (error.name === "AbortError") {
    if (text) history.push({ role: "assistant", content: text });
    else takeBack();
    return;
  }
  const told = error instanceof StenoError ? `${error.message} (${error.code ?? error.status})` : `Steno cannot be reached at ${base()}.`;
  const item = append(element("li", "error", told));
  item.setAttribute("role", "alert");
  takeBack();
}

// What was not answered goes back into the box: it is in no history.
function takeBack() {
  $("text").value = history.pop()?.content ?? "";
}

function setBusy(busy) {
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("messages").setAttribute("aria-busy", busy);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || running) return;
  if (!$("settings").reportValidity()) return;
  $("text").value = "";
  history.push({ role: "user", content: text });
  append(element("li", "user", text));
  toEnd();
  answer();
});

$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

$("stop").addEventListener("click", () => running?.abort());

$("long").addEventListener("click", () => {
  const words = WORDS.split(" ");
  const many = Array.from({ length: 300 }, (_, place) => words[place % words.length]).join(" ");
  $("text").value = `${$("text").value} ${many}.`.trim();
  $("text").focus();
});

$("new").addEventListener("click", () => {
  running?.abort();
  history = [];
  summaries = [];
  conversation = newName();
  $("messages").replaceChildren();
  $("pressure").hidden = true;
  $("inspect").hidden = true;
  $("status").dataset.status = "none";
  $("status").textContent = "no answer yet";
});
