// What the canvas takes from markdown-it: its parser. scripts/vendor-pages makes pages/vendor/markdown-it.js of it.

export { default } from "markdown-it";
