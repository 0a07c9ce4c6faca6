// Workspaces in the order of a tree: each below its parent, and what is seen of it while some are closed.

/**
 * Puts `sorted` items into the order of a tree: `[{ item, depth, parent }]`, siblings in the order in which they came. `idOf`
 * and `parentOf` give ids. Items whose parent is not in the list stand on top, and so does one item of a ring of parents.
 */
export function treeOf(sorted, { idOf, parentOf }) {
  const ids = new Set(sorted.map(idOf));
  const below = new Map();
  const tops = [];
  for (const item of sorted) {
    const parent = parentOf(item);
    if (!ids.has(parent)) tops.push(item);
    else if (below.has(parent)) below.get(parent).push(item);
    else below.set(parent, [item]);
  }
  const order = [];
  const placed = new Set();
  const walk = (siblings, depth, parent) => {
    for (const item of siblings) {
      if (placed.has(item)) continue;
      placed.add(item);
      order.push({ item, depth, parent });
      walk(below.get(idOf(item)) ?? [], depth + 1, item);
    }
  };
  walk(tops, 0, null);
  for (const item of sorted) if (!placed.has(item)) walk([item], 0, null);
  return order;
}

/**
 * What is seen of a tree in that order, where `isClosed(item)` hides all that is below: `[{ item, depth, parent, isParent,
 * hidden }]`. `hidden`: how many are below it and not shown.
 */
export function folded(order, isClosed) {
  const seen = [];
  let closed = null;
  for (const [at, entry] of order.entries()) {
    if (closed && entry.depth > closed.depth) {
      closed.hidden += 1;
      continue;
    }
    const isParent = order[at + 1]?.depth > entry.depth;
    const shown = { ...entry, isParent, hidden: 0 };
    closed = isParent && isClosed(entry.item) ? shown : null;
    seen.push(shown);
  }
  return seen;
}
