// The charts of the console. scripts/vendor-pages makes pages/vendor/uplot.js of it.

export { default } from "uplot";
