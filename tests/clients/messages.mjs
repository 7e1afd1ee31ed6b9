// A long conversation with tools and thinking over Messages: node messages.mjs URL CLIENT. Ends with an error where the
// client has one. What the provider saw of it is for the caller to judge.
import { createAnthropic } from "@ai-sdk/anthropic";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, which] = process.argv.slice(2);
const model = "claude-bind";
const system = "You are the shop's clerk.";
const thinking = { type: "enabled", budget_tokens: 1024 };
const schema = { type: "object", properties: { order: { type: "string" } }, required: ["order"] };
const turns = 40;

const filler = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again".split(" ");
const words = (number) => Array.from({ length: number }, (_, index) => filler[index % filler.length]).join(" ");
const question = (turn) => `${turn}. ${words(400)} ${turn % 3 === 1 ? "Find it?" : "Thank you."}`;

const client = new Anthropic({ baseURL: url, apiKey: `sk-${which}`, maxRetries: 0 });

async function sdk(ask) {
  const messages = [];
  for (let turn = 0; turn < turns; turn++) {
    messages.push({ role: "user", content: question(turn) });
    for (;;) {
      const tools = [{ name: "look_up", description: "Finds an order.", input_schema: schema }];
      const answer = await ask({ model, max_tokens: 1200, system, tools, thinking, messages });
      messages.push({ role: "assistant", content: answer.content });
      const call = answer.content.find((block) => block.type === "tool_use");
      if (!call) break;
      messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: words(150) }] });
    }
  }
}

async function toolRunner(stream) {
  let calls = 0;
  const run = async () => `${calls++}. ${words(500)} ${calls < 60 ? "Find it?" : "Done."}`;
  const lookUp = betaTool({ name: "look_up", description: "Finds an order.", inputSchema: schema, run });
  const messages = [{ role: "user", content: "Look everything up. Find it?" }];
  // thread: false, as a conversation that the provider keeps cannot be compacted by anybody else.
  const asked = { model, max_tokens: 1200, tools: [lookUp], thinking, messages, stream, thread: false };
  for await (const answer of client.beta.messages.toolRunner(asked)) if (stream) await answer.finalMessage();
  if (calls !== 60) throw new Error(`it ended after ${calls} calls`);
}

async function aiSdk(ask) {
  const provider = createAnthropic({ baseURL: `${url}/v1`, apiKey: `sk-${which}` });
  const lookUp = tool({ description: "Finds an order.", inputSchema: z.object({ order: z.string() }), execute: async () => words(150) });
  const anthropic = { thinking: { type: "enabled", budgetTokens: 1024 } };
  const options = { model: provider(model), system, tools: { look_up: lookUp }, maxRetries: 0, maxOutputTokens: 1200 };
  const messages = [];
  for (let turn = 0; turn < turns; turn++) {
    messages.push({ role: "user", content: question(turn) });
    messages.push(...(await ask({ ...options, stopWhen: stepCountIs(4), providerOptions: { anthropic }, messages })));
  }
}

async function streamed(options) {
  const answer = streamText({ ...options, onError: () => {} });
  for await (const part of answer.fullStream) if (part.type === "error") throw part.error;
  return (await answer.response).messages;
}

const clients = {
  "anthropic-ts": () => sdk((asked) => client.messages.create(asked)),
  "anthropic-ts stream": () => sdk((asked) => client.messages.stream(asked).finalMessage()),
  "anthropic-ts beta": () => sdk((asked) => client.beta.messages.create({ ...asked, betas: ["context-management-2025-06-27"] })),
  "anthropic-ts tool runner": () => toolRunner(false),
  "anthropic-ts tool runner stream": () => toolRunner(true),
  "ai-sdk": () => aiSdk(async (options) => (await generateText(options)).response.messages),
  "ai-sdk stream": () => aiSdk(streamed),
};
await clients[which]();
