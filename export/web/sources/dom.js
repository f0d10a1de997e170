// What the views share.

/** An element of the page by its name. */
export const $ = (id) => document.getElementById(id);

/** A number in words, rounded. */
export const words = (number) => Math.round(number).toLocaleString("en");
