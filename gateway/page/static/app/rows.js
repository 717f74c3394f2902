/** Rows of the overview and what events say of them. Values in, values out. */

/**
 * The rows with what has changed, in the order they had.
 *
 * `hasUnknown`: a changed conversation is not among them. It may be new, or the filters leave it out: the server knows.
 */
export function mergeRows(rows, changed) {
  const byId = new Map(changed.map((row) => [row.id, row]));
  const merged = rows.map((row) => {
    const found = byId.get(row.id);
    byId.delete(row.id);
    // Events have no titles, because those are texts.
    return found ? { ...found, title: found.title ?? row.title } : row;
  });
  return { rows: merged, hasUnknown: byId.size > 0 };
}

/** The rows with the server's newest page: those that were not there come first. */
export function mergeNewest(rows, newest) {
  const known = new Set(rows.map((row) => row.id));
  const fresh = newest.filter((row) => !known.has(row.id));
  return [...fresh, ...mergeRows(rows, newest).rows];
}

/** All tenants in one. Money is null unless it is known for some of them. */
export function sumTotals(tenants) {
  const total = {};
  for (const row of tenants) {
    for (const [name, value] of Object.entries(row)) {
      if (typeof value === "number") total[name] = (total[name] ?? 0) + value;
      else if (value && typeof value === "object") total[name] = sumTotals([total[name] ?? {}, value]);
    }
  }
  return total;
}
