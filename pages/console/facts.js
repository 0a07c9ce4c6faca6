// What a check found, as rows that people read: a name and a value in words, however deep the fact is.

import { count, span } from "./show.js";

/** Levels of a fact that get rows of their own. What lies deeper is shown as JSON. */
const DEPTH_MAX = 4;

/** Units that a name ends with, and how a number of them reads. */
const UNITS = [
  [/_ms$/, (n) => (n < 1000 ? `${count(n)} ms` : span(n))],
  [/_seconds$/, (n) => span(n * 1000)],
  [/_bytes$/, (n) => bytes(n)],
];

/** Numbers that count nothing. */
const NAMES = ["port", "generation"];

/** Words that are written otherwise than in a key. */
const SPELLINGS = { a2a: "A2A", id: "id", tls: "TLS", ttl: "TTL", url: "URL" };

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

const moment = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** The rows of a fact: `[{ name, text }]`. */
export function rowsOf(fact) {
  return Object.entries(fact).flatMap(([key, value]) => rows(key, value, [], 1));
}

function rows(key, value, above, depth) {
  const unit = UNITS.find(([ends]) => ends.test(key)) ?? (NAMES.includes(key) ? ["", String] : undefined);
  const names = [...above, words(unit ? key.replace(unit[0], "") : key)];
  if (isPlain(value)) return [{ name: named(names), text: worded(value, unit) }];
  const isList = Array.isArray(value);
  if (isList && value.every(isPlain)) return [{ name: named(names), text: value.map((one) => worded(one, unit)).join(", ") || "none" }];
  const members = Object.entries(value);
  if (members.length === 0) return [{ name: named(names), text: "none" }];
  if (depth === DEPTH_MAX) return [{ name: named(names), text: JSON.stringify(value) }];
  return members.flatMap(([inner, one]) => rows(isList ? String(Number(inner) + 1) : inner, one, names, depth + 1));
}

const isPlain = (value) => value === null || typeof value !== "object";

/** `heartbeat_age` is “heartbeat age”; a setting's name (`access.lineage`) stays as it is written. */
const words = (key) => {
  if (key.includes(".")) return key;
  const parts = key.split("_");
  return parts.map((part) => SPELLINGS[part] ?? part).join(" ");
};

function named(names) {
  const name = names.join(", ");
  return name.includes(".") ? name : name.charAt(0).toUpperCase() + name.slice(1);
}

function worded(value, unit) {
  if (value === null || value === "") return "none";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return unit ? unit[1](value) : count(value);
  return TIME.test(value) ? moment.format(new Date(value)) : value;
}

function bytes(n) {
  const [unit, name] = [[1 << 30, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]].find(([size]) => n >= size) ?? [1, "bytes"];
  return `${count(Math.round((n / unit) * 10) / 10)} ${name}`;
}
