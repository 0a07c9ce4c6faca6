// What the console knows, made of the feed's events: workspaces with what passes through them, the last exchanges,
// replicas. Only what changed is touched, since there may be thousands.

import { folded, treeOf } from "./hierarchy.js";

/** Exchanges that are kept. */
export const KEPT = 2000;

/** The span of "per minute", in milliseconds, by the gateway's clock. */
const MINUTE = 60_000;

/** Points of the curves in the header: one a second. */
export const POINTS = 60;

/** A workspace as the feed has it: an array, since there are thousands. */
function workspaceOf([id, name, parent, org, status, mode, liveness, seen, tasks]) {
  return { id, name, parent, org, status, mode, liveness, seen, tasks };
}

export class Model extends EventTarget {
  constructor() {
    super();
    this.reset();
  }

  reset() {
    /** By id: what is known of it, and `n`, `refused`, `sent` (of the last minute) and `streams`. */
    this.workspaces = new Map();
    this.overview = null;
    this.states = new Map();
    /** When the feed said something last, by our clock. */
    this.heardAt = Date.now();
    this.exchanges = [];
    /** Exchanges that were too many to be told one by one. */
    this.untold = 0;
    this.replicas = [];
    this.replica = null;
    this.version = null;
    /** Whether all workspaces have come, and whether some were too many. */
    this.complete = false;
    this.truncated = false;
    this.trouble = null;
    /** The gateway's clock less ours. */
    this.skew = 0;
    this.since = null;
    this.curve = [];
    this.totals = { n: 0, refused: 0, streams: 0 };
    /** What is counted in the last minute: `{ at, counts: [id, n, refused][], sent: [id, n][] }`, the oldest first. */
    this.window = [];
    /** Counts that came before their workspace. */
    this.early = new Map();
    /** Grows when workspaces come, go, or change: what order depends on. */
    this.rowsVersion = 0;
  }

  /** Takes in how workspaces are: `GET /console/overview`. */
  setStates(overview) {
    this.overview = overview;
    this.states = new Map(overview.unwell.map(({ id, state }) => [id, state]));
    this.dispatchEvent(new Event("change"));
  }

  /** How a workspace is; before that is known, `null`. */
  stateOf(id) {
    return this.overview === null ? null : (this.states.get(id) ?? "healthy");
  }

  /** Takes an event of the feed in, and tells those who look. */
  hear(event, data) {
    this.heardAt = Date.now();
    if (event === "begin") this.#begin(data);
    else if (event === "rows") this.#rows(data);
    else if (event === "tick") this.#tick(data);
    else if (event === "trouble") this.trouble = data;
    else return;
    this.dispatchEvent(new Event("change"));
  }

  /** The gateway's clock. */
  now() {
    return Date.now() + this.skew;
  }

  #begin(data) {
    const { exchanges, untold, overview, states } = this;
    this.reset();
    // What was heard before a feed broke off is still true.
    Object.assign(this, { exchanges, untold, overview, states });
    this.skew = data.at - Date.now();
    this.replica = data.replica;
    this.version = data.version;
    this.since = data.since;
    this.replicas = data.replicas;
    for (const [at, counts, sent] of data.minute) this.#count(at, counts, sent);
    for (const [id, open] of data.streams) this.#streams(id, open);
  }

  #rows({ rows, last, truncated }) {
    for (const row of rows) this.#put(workspaceOf(row));
    this.rowsVersion += 1;
    this.complete = last;
    this.trouble = null;
    this.truncated = truncated;
  }

  #tick(data) {
    this.skew = data.at - Date.now();
    for (const row of data.rows) this.#put(workspaceOf(row));
    if (data.rows.length > 0) this.rowsVersion += 1;
    for (const [id, seen, tasks] of data.seen) {
      const workspace = this.workspaces.get(id);
      if (workspace) Object.assign(workspace, { seen, tasks });
    }
    this.#expire(data.at - MINUTE);
    this.#count(data.at, data.counts, data.sent);
    for (const [id, open] of data.streams) this.#streams(id, open);
    this.replicas = data.replicas;
    this.totals.streams = data.replicas.reduce((sum, { streams }) => sum + streams, 0);
    this.untold += data.more;
    if (data.exchanges.length > 0) {
      // The newest first, and no more than are kept.
      this.exchanges = data.exchanges.reverse().concat(this.exchanges);
      if (this.exchanges.length > KEPT) this.exchanges.length = KEPT;
    }
    const n = data.counts.reduce((sum, [, n]) => sum + n, 0);
    const refused = data.counts.reduce((sum, [, , refused]) => sum + refused, 0);
    this.curve.push({ n, refused });
    if (this.curve.length > POINTS) this.curve.shift();
  }

  #put(workspace) {
    const before = this.workspaces.get(workspace.id);
    if (workspace.status === "removed") {
      this.workspaces.delete(workspace.id);
    } else if (before) {
      workspace.seen = Math.max(workspace.seen ?? 0, before.seen ?? 0) || null;
      Object.assign(before, workspace, { key: null });
    } else {
      const early = this.early.get(workspace.id) ?? { n: 0, refused: 0, sent: 0, streams: 0 };
      this.early.delete(workspace.id);
      this.workspaces.set(workspace.id, Object.assign(workspace, early));
    }
  }

  /** Exchanges of the last minute that named ids which no workspace has: one number for all of them. */
  get strays() {
    return this.early.get("unknown:")?.n ?? 0;
  }

  /** Where counts of `id` go: to the workspace, or to the side until it has come. */
  #place(id) {
    const workspace = this.workspaces.get(id);
    if (workspace) return workspace;
    if (!this.early.has(id) && this.early.size < 20_000) this.early.set(id, { n: 0, refused: 0, sent: 0, streams: 0 });
    return this.early.get(id) ?? { n: 0, refused: 0, sent: 0 };
  }

  #count(at, counts, sent) {
    for (const [id, n, refused] of counts) {
      const place = this.#place(id);
      place.n += n;
      place.refused += refused;
      this.totals.n += n;
      this.totals.refused += refused;
    }
    for (const [id, n] of sent) this.#place(id).sent += n;
    this.window.push({ at, counts, sent });
  }

  #expire(before) {
    while (this.window.length > 0 && this.window[0].at <= before) {
      const { counts, sent } = this.window.shift();
      for (const [id, n] of sent) {
        const place = this.#place(id);
        place.sent = Math.max(0, place.sent - n);
      }
      for (const [id, n, refused] of counts) {
        const place = this.#place(id);
        place.n = Math.max(0, place.n - n);
        place.refused = Math.max(0, place.refused - refused);
        this.totals.n -= n;
        this.totals.refused -= refused;
      }
    }
  }

  #streams(id, open) {
    this.#place(id).streams = open;
  }
}

const byName = (one, other) => (one.key < other.key ? -1 : one.key > other.key ? 1 : one.id < other.id ? -1 : 1);

/**
 * Workspaces as a tree, each below its parent with its `depth`; those whose parent is not there are on top. Those below one
 * whose id is in `closed` are left out; it has their number (`hidden`).
 */
export function inTree(workspaces, closed) {
  for (const workspace of workspaces.values()) workspace.key ??= workspace.name.toLowerCase();
  const sorted = [...workspaces.values()].sort(byName);
  const ids = { idOf: ({ id }) => id, parentOf: ({ parent }) => parent };
  const seen = folded(treeOf(sorted, ids), ({ id }) => closed.has(id));
  return seen.map(({ item, depth, isParent, hidden }) => Object.assign(item, { depth, isParent, hidden }));
}
