/** The overview's filters. The server applies them, and the address keeps them. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { renderOverview, replaceRoute } from "./router.js";

const TYPING_MS = 250;
// What the gateway tells apart, as it names it, and in words.
const PURPOSES = { main: "Main conversation", agent: "Sub-agent", summary: "Client's own summary", title: "Title" };

export const namePurpose = (purpose) => PURPOSES[purpose] ?? purpose;

export function Filters({ query, tenants, rows }) {
  const form = useRef(null);
  const timer = useRef(0);
  // What is typed, which the address follows a little later. Drawing the form again must not undo it.
  const [typed, setTyped] = useState(query.q ?? "");
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (!timer.current) setTyped(query.q ?? "");
  }, [query.q]);
  const apply = () => {
    clearTimeout(timer.current);
    timer.current = 0;
    replaceRoute(renderOverview(Object.fromEntries(new FormData(form.current))));
  };
  const type = (event) => {
    setTyped(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(apply, TYPING_MS);
  };
  const submit = (event) => {
    event.preventDefault();
    apply();
  };
  const clear = () => {
    clearTimeout(timer.current);
    timer.current = 0;
    setTyped("");
    form.current.reset();
    replaceRoute(renderOverview());
    form.current.elements.q.focus();
  };
  const models = [...new Set(rows.map((row) => row.model).filter(Boolean))].sort();
  const isFiltered = Object.keys(query).length > 0;
  return html`<form class="filters" role="search" aria-label="Conversations" ref=${form} onSubmit=${submit}>
    <label class="grow"><span>Search</span>
      <input name="q" type="search" placeholder="Label, id, tenant or model" value=${typed}
        onInput=${type} autocomplete="off" spellcheck="false" /></label>
    <${Choice} label="Tenant" name="tenant" all="All tenants" chosen=${query.tenant} onChange=${apply}
      options=${tenants.map(({ tenant }) => [tenant, tenant])} />
    <${Choice} label="Model" name="model" all="All models" chosen=${query.model} onChange=${apply}
      options=${models.map((model) => [model, model])} />
    <${Choice} label="Purpose" name="purpose" all="All purposes" chosen=${query.purpose} onChange=${apply}
      options=${Object.entries(PURPOSES)} />
    <button type="button" onClick=${clear} disabled=${!isFiltered && !typed}>Clear</button>
  </form>`;
}

/** options: pairs of value and text. A chosen value stays among them even if the rows no longer show it. */
function Choice({ label, name, all, chosen = "", options, onChange }) {
  const isMissing = chosen && !options.some(([value]) => value === chosen);
  const shown = isMissing ? [...options, [chosen, chosen]] : options;
  return html`<label><span>${label}</span>
    <select name=${name} onChange=${onChange}>
      <option value="" selected=${!chosen}>${all}</option>
      ${shown.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === chosen}>${text}</option>`)}
    </select></label>`;
}
