// The gateway itself: its replicas, its keys, its configuration.

import { ask, words } from "./ask.js";
import { element, fill } from "./dom.js";
import { rotate } from "./act.js";
import { count, facts, loading, panel, pill, refusal, setText, span, table, when } from "./show.js";

/** A replica that told nothing for so long is not well, in milliseconds. */
const SILENT = 5000;

/** `{ element, change, close }` of the view. */
export function gatewayView(model) {
  const replicas = element("div", {});
  const keys = element("div", {}, loading("the keys"));
  const config = element("div", {}, loading("the configuration"));
  let shown = null;

  async function readKeys() {
    try {
      fill(keys, ...keysShown(await ask("console/keys"), readKeys));
    } catch (error) {
      fill(keys, refusal(words(error), readKeys));
    }
  }

  async function readConfig() {
    try {
      fill(config, ...configShown(await ask("config")));
    } catch (error) {
      fill(config, refusal(words(error), readConfig));
    }
  }

  function change() {
    const cells = model.replicas.map((one) => replica(one, model));
    const same = shown?.length === cells.length && shown.every((row, index) => row.name === cells[index].name);
    if (!same) {
      shown = cells;
      fill(replicas, table("Replicas", ["Replica", "State", "Stores", "Version", "Running for", "Calls", "Streams"], cells.map(({ nodes }) => nodes), "No replica has reported yet."));
      return;
    }
    for (const [index, { nodes }] of cells.entries()) {
      for (const [at, node] of nodes.entries()) {
        const mine = shown[index].nodes[at];
        if (mine.textContent === node.textContent) continue;
        setText(mine, node.textContent);
        if (node.dataset.tone) mine.dataset.tone = node.dataset.tone;
      }
    }
  }

  readKeys();
  readConfig();
  change();
  const view = element("div", { className: "view" }, element("h1", { tabIndex: -1 }, "System"), panel("Replicas", replicas), panel("Trust keys", keys), panel("Configuration", config));
  return { title: "System", element: view, change, close: () => {} };
}

function replica(one, model) {
  const text = (value) => element("span", {}, value);
  const state = one.silent_ms > SILENT ? [`silent for ${span(one.silent_ms)}`, "bad"] : one.draining ? ["draining", "warn"] : ["serving", "ok"];
  const away = [!one.sql && "SQL", !one.shared && "shared state"].filter(Boolean);
  const stores = away.length === 0 ? ["answer", "ok"] : [`${away.join(" and ")} away`, "bad"];
  const name = one.replica === model.replica ? `${one.replica} (this one)` : one.replica;
  const nodes = [element("code", {}, name), pill(...state), pill(...stores), text(one.version), text(span(model.now() - one.started)), text(count(one.open)), text(count(one.streams))];
  return { name, nodes };
}

function keysShown({ readable, keys }, again) {
  const purpose = ({ state, verifies_until: until }) => {
    if (state === "active") return "signs";
    if (state === "next") return "signs after the next rotation";
    return element("span", {}, "verifies until ", when(until));
  };
  const tones = { active: "ok", next: "busy", retired: "warn" };
  const rows = keys.map((key) => [
    element("code", {}, key.kid),
    key.algorithm,
    pill(key.state, tones[key.state]),
    key.age_seconds === undefined ? element("span", {}, "until ", when(key.retired_at)) : `for ${span(key.age_seconds * 1000)}`,
    purpose(key),
  ]);
  const [next, active] = ["next", "active"].map((state) => keys.find((key) => key.state === state));
  const turn = element("button", { type: "button", onclick: () => rotate(next, active).then(again) }, "Rotate keys…");
  const trouble = readable ? null : element("p", { className: "notice", "data-tone": "bad" }, "keys.dir cannot be read: the keys known before stay in force. Look at the folder and its owner.");
  return [trouble, table("Trust keys", ["Key", "Algorithm", "State", "Time", "Use"], rows, "There is no key, which cannot be."), element("p", {}, turn)].filter(Boolean);
}

function configShown({ loaded_at: loaded, last_reload: last, restart_needed: waiting }) {
  const problems = last.problems.map((problem) => element("li", {}, problem));
  return [
    last.successful ? null : element("div", { className: "notice", "data-tone": "bad" }, element("p", {}, "The last reload was refused; the configuration before it stays in force."), element("ul", {}, problems)),
    facts([
      ["In force since", when(loaded)],
      ["Waiting for a restart", waiting.length === 0 ? "nothing" : waiting.map(({ key }) => key).join(", ")],
    ]),
    element("p", { className: "muted small" }, element("code", {}, "GET /config"), " has every setting with where it comes from."),
  ].filter(Boolean);
}
