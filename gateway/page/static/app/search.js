/** Searches the messages that were summarized or pruned. Each search that finds something is logged by the gateway. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { api } from "./api.js";
import { formatCount, formatNumberOf, formatTime } from "./format.js";
import { LongText } from "./text-block.js";

const MOST_PIECES = 10;

export function Search({ id, row }) {
  const isAllowed = row.texts?.allowed !== false;
  return html`<section aria-labelledby="search-heading">
    <h2 id="search-heading">Search removed messages</h2>
    ${!isAllowed && html`<p class="empty">What a search finds are texts, which are not shown here: see above.</p>`}
    ${isAllowed && !hasRemoved(row) &&
    html`<p class="empty">Nothing was removed from what is sent so far.</p>`}
    ${isAllowed && hasRemoved(row) && html`<${SearchForm} id=${id} />`}
  </section>`;
}

function hasRemoved(row) {
  return row.compactions > 0 || row.prunings > 0 || row.pivot != null;
}

function SearchForm({ id }) {
  const field = useRef(null);
  const abort = useRef(null);
  const [state, setState] = useState({ found: null, problem: null });
  useEffect(() => () => abort.current?.abort(), []);
  const submit = async (event) => {
    event.preventDefault();
    const query = field.current.value.trim();
    if (!query) return;
    abort.current?.abort();
    const own = (abort.current = new AbortController());
    try {
      const { found } = await api.search(id, { q: query, limit: MOST_PIECES }, own.signal);
      setState({ found, problem: null });
    } catch (problem) {
      if (problem.name !== "AbortError") setState({ found: null, problem });
    }
  };
  return html`
    <form class="search" role="search" aria-label="Removed messages" onSubmit=${submit}>
      <label for="removed-query">Words, paths or identifiers</label>
      <div class="field-row">
        <input id="removed-query" ref=${field} type="search" maxlength="1000" required autocomplete="off" spellcheck="false" />
        <button type="submit">Search</button>
      </div>
    </form>
    <p class="error" role="alert">${state.problem && state.problem.detail}</p>
    <p class="muted" role="status">${state.found && describeFound(state.found)}</p>
    ${state.found?.length > 0 &&
    html`<ol class="found" aria-label="Pieces that were found">
      ${state.found.map((piece) => html`<${Piece} key=${`${piece.conversation} ${piece.position} ${piece.start}`} id=${id} piece=${piece} />`)}
    </ol>`}
  `;
}

function describeFound(found) {
  if (found.length === 0) return "Nothing found in the messages that were summarized or pruned.";
  return `${formatNumberOf(found.length, "piece")} found, the best first.`;
}

function Piece({ id, piece }) {
  const place = [piece.role, piece.tool, piece.path].filter(Boolean).join(" · ");
  return html`<li>
    <p class="found-place"><strong>Message ${formatCount(piece.position)}</strong>
      ${piece.conversation !== id && html` <span class="note">of ${piece.conversation.slice(0, 8)}</span>`}
      <bdi>${place}</bdi>
      <span class="note">removed <time dateTime=${piece.when}>${formatTime(piece.when)}</time></span></p>
    <${LongText} text=${piece.text} />
  </li>`;
}
