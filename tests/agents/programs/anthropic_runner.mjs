// The tool runner of the Anthropic SDK: anthropic_runner.mjs 'tool runner'|thread plain|streaming PROMPT...
//
// The server holds the conversation. `tool runner` begins a thread for each prompt and sends its history
// once, `thread` goes on with the same one.

import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [kind, mode, ...prompts] = process.argv.slice(2);
const client = new Anthropic({ baseURL: process.env.GATEWAY_URL, apiKey: process.env.GATEWAY_KEY });
const stream = mode === "streaming";

const readNote = betaTool({
  name: "read_note",
  description: "Read one file.",
  inputSchema: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
  run: ({ path }) => readFile(path, "utf-8"),
});

const envelope = {
  model: process.env.GATEWAY_MODEL,
  max_tokens: 2000,
  system: "You read notes and report what they say.",
  tools: [readNote],
};

const thread = client.beta.messages.thread(envelope);
let history = [];

function makeRunner(question) {
  if (kind === "tool runner") {
    return client.beta.messages.toolRunner({ ...envelope, stream, messages: [...history, question] });
  }
  thread.append(question);
  return thread.toolRunner({ stream });
}

for (const prompt of prompts) {
  const runner = makeRunner({ role: "user", content: prompt });
  const message = await runner.runUntilDone();
  history = runner.params.messages;
  console.log(message.content.map((block) => (block.type === "text" ? block.text : "")).join(""));
}
