"use strict";
/* The lead's page: loads its content again every 30 seconds. */

setInterval(async () => {
  try {
    const response = await fetch("/lead", { headers: { Accept: "text/html" } });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
  } catch { /* the server cannot be reached: the last state stays */ }
}, 30000);
