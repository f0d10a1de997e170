// What the views share.

/** An element of the page by its name. */
export const $ = (id) => document.getElementById(id);

/** A number rounded and grouped: 1,234. */
export const grouped = (number) => Math.round(number).toLocaleString("en");
