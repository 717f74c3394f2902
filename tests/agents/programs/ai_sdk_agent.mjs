// An agent of the Vercel AI SDK: ai_sdk_agent.mjs chat|responses|messages plain|streaming PROMPT...

import { readFile } from "node:fs/promises";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [format, mode, ...prompts] = process.argv.slice(2);
const endpoint = { baseURL: process.env.GATEWAY_URL, apiKey: process.env.GATEWAY_KEY };
const name = process.env.GATEWAY_MODEL;

const models = {
  chat: () => createOpenAICompatible({ name: "gateway", ...endpoint })(name),
  responses: () => createOpenAI(endpoint).responses(name),
  messages: () => createAnthropic(endpoint)(name),
};

const readNote = tool({
  description: "Read one file.",
  inputSchema: z.object({ path: z.string() }),
  execute: ({ path }) => readFile(path, "utf-8"),
});

async function ask(messages) {
  const call = {
    model: models[format](),
    system: "You read notes and report what they say.",
    messages,
    tools: { read_note: readNote },
    // By default a run ends after one step.
    stopWhen: stepCountIs(1000),
  };
  if (mode === "plain") {
    return generateText(call);
  }
  const result = streamText(call);
  await result.consumeStream();
  return { text: await result.text, response: await result.response };
}

const messages = [];
for (const prompt of prompts) {
  messages.push({ role: "user", content: prompt });
  const { text, response } = await ask(messages);
  messages.push(...response.messages);
  console.log(text);
}
