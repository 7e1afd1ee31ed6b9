// Types of what Steno adds to answers and streams, for clients in TypeScript. Copy this file beside your program.

export type Status = "full" | "summarized" | "trimmed";

/** Estimates, in the provider's tokens. */
export interface Tokens {
  estimated: number;
  forwarded: number;
  saved: number;
  window: number;
}

/** Numbers of the quoted messages and of their tokens. */
export interface Recalled {
  messages: number;
  tokens: number;
}

/** The `context` of an answer, or of the last chunk or event of a stream. */
export interface Context {
  conversation_id: string;
  status: Status;
  actions: string[];
  tokens: Tokens;
  chunks: string[];
  reason: string | null;
  messages?: Record<string, number>;
  recalled?: Recalled;
}

/** Number of messages that are being summarised. */
export interface Summarizing {
  summarizing: number;
}

/** The tokens that are known before a compaction. */
export interface EarlyTokens {
  estimated: number;
  window: number;
}

/** The event that opens a compaction on a stream. */
export interface CompactionStarted {
  type: "compaction_started";
  id: string;
  conversation_id: string;
  messages: Summarizing;
  tokens: EarlyTokens;
}

/** The event that closes a compaction, with the same `id`. */
export interface CompactionEnded extends Context {
  type: "compaction_completed" | "compaction_failed";
  id: string;
}

export type CompactionEvent = CompactionStarted | CompactionEnded;

/** What Steno adds to an answer. */
export interface WithContext {
  context_status?: Status;
  context?: Context;
}

/** What Steno adds to the chunks or events of a stream. */
export interface WithCompaction extends WithContext {
  compaction?: CompactionEvent;
}
