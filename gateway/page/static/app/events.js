/**
 * The gateway's server-sent events, read with fetch: EventSource cannot send the token.
 *
 * One stream serves the whole page. It is opened again with growing pauses when it breaks.
 */

import { send } from "./api.js";

const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 30_000;
// The gateway sends a comment every 15 s. A stream that is silent for longer than two of them is dead.
const SILENCE_MS = 40_000;

/** Turns pieces of text into events: `{name, data}` with parsed JSON. Comments are dropped. */
export class EventParser {
  #rest = "";

  /** The events that are complete with this piece. */
  push(piece) {
    const blocks = (this.#rest + piece).split("\n\n");
    this.#rest = blocks.pop();
    return blocks.map(parseBlock).filter((event) => event !== null);
  }
}

function parseBlock(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).trim());
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

/** States: "connecting" at first, "live", "lost" until it is live again. */
export class EventFeed {
  #listeners = new Set();
  #stateListeners = new Set();
  #pause = FIRST_PAUSE_MS;
  #timer = 0;
  #abort = null;
  state = "connecting";

  /** Calls `listener({name, data})` for each event. Returns what ends it. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  onState(listener) {
    this.#stateListeners.add(listener);
    return () => this.#stateListeners.delete(listener);
  }

  /** Connects at once, also if a pause is under way or a stream is open. */
  connect() {
    clearTimeout(this.#timer);
    this.#abort?.abort();
    this.#abort = new AbortController();
    this.#run(this.#abort);
  }

  async #run(abort) {
    try {
      const response = await send("GET", "/events", { signal: abort.signal });
      this.#pause = FIRST_PAUSE_MS;
      this.#enter("live");
      await this.#read(response.body.pipeThrough(new TextDecoderStream()).getReader(), abort);
    } catch (error) {
      // Another connect() has taken over, or the page asks for the token and then connects.
      if (this.#abort !== abort || error.status === 401) return;
    }
    if (this.#abort !== abort) return;
    this.#enter("lost");
    this.#timer = setTimeout(() => this.connect(), this.#pause);
    this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE_MS);
  }

  /** Returns when the stream ends; throws when it breaks or is silent for too long. */
  async #read(reader, abort) {
    const parser = new EventParser();
    while (true) {
      const watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
      const { done, value } = await reader.read().finally(() => clearTimeout(watchdog));
      if (done) return;
      for (const event of parser.push(value)) this.#listeners.forEach((listener) => listener(event));
    }
  }

  #enter(state) {
    if (state === this.state) return;
    this.state = state;
    this.#stateListeners.forEach((listener) => listener(state));
  }
}

export const feed = new EventFeed();
