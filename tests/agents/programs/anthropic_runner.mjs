// The Anthropic SDK's tool runner: anthropic_runner.mjs thread|runner|unthreaded plain|streaming PROMPT...
//
// It sends only what is new, and the server holds the rest. thread: one thread for the whole conversation;
// runner: a new thread for each prompt, as `toolRunner({ messages })` makes it; unthreaded: the whole history.

import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [holder, mode, ...prompts] = process.argv.slice(2);
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
  if (holder === "thread") {
    thread.append(question);
    return thread.toolRunner({ stream });
  }
  const options = holder === "unthreaded" ? { thread: false } : {};
  return client.beta.messages.toolRunner({ ...envelope, ...options, stream, messages: [...history, question] });
}

for (const prompt of prompts) {
  const runner = makeRunner({ role: "user", content: prompt });
  const message = await runner.runUntilDone();
  history = runner.params.messages;
  console.log(message.content.map((block) => (block.type === "text" ? block.text : "")).join(""));
}
