/** A modal dialog. The browser keeps the focus inside, closes it with Escape and gives the focus back. */

import { html, useEffect, useRef } from "../vendor/htm-preact.js";

export function Dialog({ title, onClose, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${onClose}>
    <h2 id="dialog-title">${title}</h2>
    ${children}
  </dialog>`;
}

/** For a button inside a dialog: closes it. */
export function closeDialog(event) {
  event.target.closest("dialog").close();
}
