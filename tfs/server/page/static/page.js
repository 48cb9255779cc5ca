"use strict";
// Keeps the page live, sends its forms, and takes the key that `tfs page` puts behind the #.
(() => {
  const EVERY_MS = 2000;
  const said = document.getElementById("said");
  let timer = 0;
  let asking = null;

  const say = (text, isBad) => {
    said.textContent = text;
    said.classList.toggle("bad", isBad);
    said.hidden = !text;
  };

  const post = async (path, body, headers) => {
    const answer = await fetch(path, { method: "POST", body, headers });
    const document = await answer.json();
    if (!answer.ok) throw new Error(document.error);
    return document;
  };

  // -- the key ---------------------------------------------------------------------------

  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key) {
    history.replaceState(null, "", location.pathname + location.search);
    post("/page/key", "", { Authorization: `Bearer ${key}` })
      .then(() => location.reload())
      .catch((error) => say(error.message, true));
  }

  // -- live parts ------------------------------------------------------------------------

  const replace = (old, fresh) => {
    if (old.innerHTML === fresh.innerHTML) return;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.replaceChildren(...fresh.childNodes);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const refresh = async () => {
    clearTimeout(timer);
    asking?.abort();
    const mine = (asking = new AbortController());
    try {
      if (!document.hidden && document.querySelector("[data-live]")) {
        const url = new URL(location.href);
        url.hash = "";
        url.searchParams.set("part", "live");
        const answer = await fetch(url, { signal: mine.signal });
        if (!answer.ok) throw new Error(answer.statusText);
        const text = await answer.text();
        const fresh = new DOMParser().parseFromString(text, "text/html");
        for (const part of fresh.querySelectorAll("[data-live]")) {
          const old = document.getElementById(part.id);
          if (old) replace(old, part);
        }
        document.body.classList.remove("lost");
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      document.body.classList.add("lost");
      const state = document.querySelector("#server .state");
      if (state) state.textContent = "no answer";
    }
    timer = setTimeout(refresh, EVERY_MS);
  };
  timer = setTimeout(refresh, EVERY_MS);
  document.addEventListener("visibilitychange", () => !document.hidden && refresh());

  // -- finding ---------------------------------------------------------------------------

  const find = document.getElementById("find");
  find?.addEventListener("input", () => {
    const url = new URL(location.href);
    url.searchParams.delete("page");
    if (find.value) url.searchParams.set("q", find.value);
    else url.searchParams.delete("q");
    history.replaceState(null, "", url);
    clearTimeout(timer);
    timer = setTimeout(refresh, 120);
  });
  find?.form.addEventListener("submit", (event) => {
    event.preventDefault();
    refresh();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "/" && find && !isTyping) {
      event.preventDefault();
      find.focus();
    }
  });

  // -- operating -------------------------------------------------------------------------

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("[data-act]")) return;
    event.preventDefault();
    if (!confirm(form.dataset.sure)) return;
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      const { said: text } = await post(form.action, new URLSearchParams(new FormData(form)));
      say(text, false);
    } catch (error) {
      say(error.message, true);
    }
    button.disabled = false;
    refresh();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-post]");
    if (!button) return;
    post(button.dataset.post, "")
      .then(() => location.assign("/"))
      .catch((error) => say(error.message, true));
  });

  // -- trying a model --------------------------------------------------------------------

  for (const form of document.querySelectorAll("[data-try]")) {
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const [button, output, shown] = ["button", "output", "pre"].map((each) => form.querySelector(each));
      button.disabled = true;
      output.textContent = "";
      const begun = performance.now();
      try {
        const answer = await fetch(form.dataset.try, {
          method: "POST",
          body: form.body.value,
          headers: { "Content-Type": "application/json" },
        });
        shown.textContent = await answer.text();
        const ms = (performance.now() - begun).toPrecision(3);
        output.textContent = `${answer.ok ? "answered" : `status ${answer.status}`} in ${ms} ms`;
        shown.classList.toggle("bad", !answer.ok);
      } catch (error) {
        shown.textContent = error.message;
      }
      shown.hidden = false;
      button.disabled = false;
    });
  }
})();
