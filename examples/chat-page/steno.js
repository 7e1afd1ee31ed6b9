// What Steno says on a streamed chat completion, read from a fetch response. No dependencies.

// Events of one streamed answer, in order:
//   {type: "text", text}                   a piece of the model's answer
//   {type: "compaction", event}            compaction_started, _completed or _failed, with its members
//   {type: "status", status}               "full", "summarized" or "trimmed", as soon as it is known
//   {type: "context", context}             what was done, on the chunk that finishes
// A refusal throws a StenoError, before the first byte or after it.
export async function* eventsOf(response) {
  if (!response.ok) throw await refusal(response);
  for await (const chunk of chunksOf(response.body)) {
    if (chunk.error) throw new StenoError(chunk.error, chunk.error.status ?? 200);
    if (chunk.compaction) yield { type: "compaction", event: chunk.compaction };
    if (chunk.context_status) yield { type: "status", status: chunk.context_status };
    const text = chunk.choices?.[0]?.delta?.content;
    if (text) yield { type: "text", text };
    if (chunk.context) yield { type: "context", context: chunk.context };
  }
}

export class StenoError extends Error {
  constructor(error, status) {
    super(error.message);
    this.code = error.code;
    this.status = status;
    this.retryAfter = error.retry_after; // Seconds, where the provider said so.
  }
}

async function refusal(response) {
  const text = await response.text();
  try {
    return new StenoError(JSON.parse(text).error, response.status);
  } catch {
    return new StenoError({ message: text || response.statusText, code: null }, response.status);
  }
}

// The JSON of each frame. Comments, such as keep-alives, and [DONE] are left out; so is a frame that has no end.
async function* chunksOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    unread += value;
    const frames = unread.split(/\r?\n\r?\n/);
    unread = frames.pop();
    for (const frame of frames) {
      const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
      const data = lines.map((line) => line.slice(5).trimStart()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
