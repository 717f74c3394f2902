/**
 * What a message says, as blocks of text. Reads all three formats: Chat Completions, Responses and Messages.
 *
 * What it does not know it shows as JSON, so nothing of a message is hidden. A client may send any value in any field,
 * so every text goes through `asText`. Values in, values out.
 */

/** A text of any value of a client's. */
export function asText(value) {
  if (typeof value === "string") return value;
  return value == null ? "" : renderJson(value);
}

/** `[{label, text}]`; an empty label: plain text of the message's role. */
export function readBlocks(message) {
  if (message === null || typeof message !== "object") return [block("", renderJson(message))];
  const blocks = [
    ...readThinking(message),
    ...readItem(message),
    ...readContent(message.content),
    ...listOf(message.tool_calls).map(readToolCall),
  ];
  if (message.refusal) blocks.push(block("Refusal", message.refusal));
  return blocks.length ? blocks : [block("JSON", renderJson(message))];
}

/** The beginning of a message in one line. */
export function previewMessage(message, longest = 160) {
  const pieces = [];
  let length = 0;
  for (const { label, text } of readBlocks(message)) {
    const piece = (label ? `${label}: ` : "") + text.slice(0, longest);
    pieces.push(piece);
    length += piece.length;
    if (length >= longest) break;
  }
  return pieces.join(" · ").replace(/\s+/g, " ").slice(0, longest);
}

export function renderJson(value) {
  return JSON.stringify(value, null, 2) ?? "";
}

/** Clients write what they like where a list should be. */
const listOf = (value) => (Array.isArray(value) ? value : []);

const block = (label, text) => ({ label: asText(label), text: asText(text) });

function readThinking({ reasoning_content: reasoning, reasoning: other }) {
  const text = asText(reasoning ?? other);
  return text ? [block("Reasoning", text)] : [];
}

/** Items of the Responses API that are not messages. */
function readItem(item) {
  switch (item.type) {
    case "function_call":
    case "custom_tool_call":
      return [block(`Call of ${asText(item.name)}`, item.arguments ?? item.input ?? "")];
    case "function_call_output":
    case "custom_tool_call_output":
      return readContent(item.output);
    case "reasoning":
      return readReasoning(item);
    default:
      return [];
  }
}

function readReasoning({ summary, encrypted_content: sealed }) {
  const blocks = listOf(summary).map((part) => block("Reasoning", part?.text ?? part));
  return blocks.length || !sealed ? blocks : [block("Reasoning", "(encrypted by the provider)")];
}

function readContent(content) {
  if (content == null) return [];
  if (typeof content === "string") return [block("", content)];
  return Array.isArray(content) ? content.flatMap(readPart) : [block("JSON", content)];
}

function readPart(part) {
  if (typeof part === "string") return [block("", part)];
  switch (part?.type) {
    case "text":
    case "input_text":
    case "output_text":
      return [block("", part.text ?? "")];
    case "thinking":
      return [block("Reasoning", part.thinking ?? "")];
    case "tool_use":
      return [block(`Call of ${asText(part.name)}`, part.input ?? {})];
    case "tool_result":
      return readContent(part.content).map(({ text }) => block(part.is_error ? "Failed result" : "Result", text));
    case "image":
    case "image_url":
    case "input_image":
      return [block("Image", describeData(part))];
    default:
      return [block(part?.type ?? "JSON", part)];
  }
}

/** Of an image its form and size: its bytes say nothing to a reader. */
function describeData(part) {
  const url = part.image_url?.url ?? part.image_url ?? part.source?.data ?? part.source?.url ?? "";
  const text = asText(url);
  return text.startsWith("http") ? text : `${asText(part.source?.media_type ?? text.slice(0, 30))} (${text.length} characters)`;
}

function readToolCall(call) {
  const called = call?.function ?? call?.custom ?? {};
  return block(`Call of ${asText(called.name ?? "a tool")}`, called.arguments ?? called.input ?? call);
}
