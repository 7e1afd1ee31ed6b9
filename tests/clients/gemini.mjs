// A long conversation with tools over Gemini's generateContent: node gemini.mjs URL CLIENT [TURNS]. Ends with an error
// where the client has one. What the provider saw of it is for the caller to judge.
import { GoogleGenAI } from "@google/genai";

const [url, which, turns = "40"] = process.argv.slice(2);
const model = "gemini-3.6-flash";
const declaration = {
  name: "look_up",
  description: "Finds an order.",
  parametersJsonSchema: { type: "object", properties: { order: { type: "string" } }, required: ["order"] },
};
const config = { systemInstruction: "You are the shop's clerk.", tools: [{ functionDeclarations: [declaration] }] };

const filler = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again".split(" ");
const words = (number) => Array.from({ length: number }, (_, index) => filler[index % filler.length]).join(" ");
const question = (turn) => `${turn}. ${words(1000)} ${turn % 3 === 1 ? "Find it?" : "Thank you."}`;

const { models, chats } = new GoogleGenAI({ apiKey: `key-${which}`, httpOptions: { baseUrl: url } });

// One content of the model from the chunks of a stream, as a client joins them.
async function joined(stream) {
  const parts = [];
  for await (const chunk of stream) parts.push(...(chunk.candidates?.[0]?.content?.parts ?? []));
  if (!parts.length) throw new Error("the stream had no parts");
  return { role: "model", parts };
}

async function talk(ask) {
  const contents = [];
  for (let turn = 0; turn < turns; turn++) {
    contents.push({ role: "user", parts: [{ text: question(turn) }] });
    for (;;) {
      const content = await ask({ model, contents, config });
      contents.push(content);
      const calls = content.parts.filter((part) => part.functionCall);
      if (!calls.length) break;
      contents.push({ role: "user", parts: calls.map(result) });
    }
  }
}

const result = ({ functionCall: { id, name } }) => ({ functionResponse: { id, name, response: { output: words(150) } } });

async function chat(send) {
  const talk = chats.create({ model, config });
  for (let turn = 0; turn < turns; turn++) {
    let calls = await send(talk, question(turn));
    while (calls.length) calls = await send(talk, calls.map(result));
  }
  // One content for each question and answer, with those of the calls between them.
  const asked = talk.getHistory(true).filter(({ role, parts }) => role === "user" && parts[0].text);
  if (asked.length !== Number(turns)) throw new Error(`its history has ${asked.length} of ${turns} questions`);
}

const callsOf = (parts) => parts.filter((part) => part.functionCall);

const clients = {
  genai: () => talk(async (asked) => (await models.generateContent(asked)).candidates[0].content),
  "genai stream": () => talk(async (asked) => joined(await models.generateContentStream(asked))),
  "genai chats": () => chat(async (talk, message) => callsOf((await talk.sendMessage({ message })).candidates[0].content.parts)),
  "genai chats stream": () => chat(async (talk, message) => callsOf((await joined(await talk.sendMessageStream({ message }))).parts)),
};
await clients[which]();
