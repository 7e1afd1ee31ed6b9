// A long conversation with tools and reasoning over Responses: node responses.mjs URL CLIENT. Ends with an error where
// the client has one. What the provider saw of it is for the caller to judge.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [url, which] = process.argv.slice(2);
const model = "gpt-think";
const instructions = "You are the shop's clerk.";
const kept = { store: false, include: ["reasoning.encrypted_content"] };
const turns = 30;

const filler = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again".split(" ");
const words = (number) => Array.from({ length: number }, (_, index) => filler[index % filler.length]).join(" ");
const question = (turn) => `${turn}. ${words(800)} Find it?`;

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: `sk-${which}`, maxRetries: 0 });

async function sdk(ask) {
  const parameters = { type: "object", properties: { order: { type: "string" } } };
  const tools = [{ type: "function", name: "look_up", strict: false, parameters }];
  const input = [];
  let summarized = 0;
  for (let turn = 0; turn < turns; turn++) {
    input.push({ role: "user", content: question(turn) });
    for (;;) {
      const [answer, status] = await ask({ model, instructions, tools, input, ...kept });
      summarized += status === "summarized";
      input.push(...answer.output.map(asItCame));
      const calls = answer.output.filter((item) => item.type === "function_call");
      if (!calls.length) break;
      for (const { call_id } of calls) input.push({ type: "function_call_output", call_id, output: words(100) });
    }
  }
  if (summarized < 5) throw new Error(`it was told of ${summarized} summarized answers`);
}

// The helper adds what it parsed, which the provider does not take back.
function asItCame({ parsed_arguments, ...item }) {
  return item.type === "message" ? { ...item, content: item.content.map(({ parsed, ...part }) => part) } : item;
}

async function events(asked) {
  let status, answer;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    status ??= event.context_status;
    if (event.type === "response.completed") answer = event.response;
  }
  return [answer, status];
}

async function helper(asked) {
  const stream = client.responses.stream(asked);
  let status;
  for await (const event of stream) status ??= event.context_status;
  return [await stream.finalResponse(), status];
}

async function aiSdk(ask) {
  const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: `sk-${which}` });
  const lookUp = tool({ description: "Finds an order.", inputSchema: z.object({ order: z.string() }), execute: async () => words(100) });
  const options = { model: provider(model), system: instructions, tools: { look_up: lookUp }, maxRetries: 0 };
  const messages = [];
  for (let turn = 0; turn < turns; turn++) {
    messages.push({ role: "user", content: question(turn) });
    messages.push(...(await ask({ ...options, stopWhen: stepCountIs(4), providerOptions: { openai: kept }, messages })));
  }
}

async function streamed(options) {
  const answer = streamText({ ...options, onError: () => {} });
  for await (const part of answer.fullStream) if (part.type === "error") throw part.error;
  return (await answer.response).messages;
}

const clients = {
  "openai-node": () => sdk(async (asked) => client.responses.create(asked).then((answer) => [answer, answer.context_status])),
  "openai-node events": () => sdk(events),
  "openai-node stream": () => sdk(helper),
  "ai-sdk": () => aiSdk(async (options) => (await generateText(options)).response.messages),
  "ai-sdk stream": () => aiSdk(streamed),
};
await clients[which]();
