/* What the theme leaves undone: buttons that open nothing, folds without a name, edges without a cue.
   It is deferred, so the page is there, and the theme's own scripts have not run yet. */
"use strict";
{
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const wide = matchMedia("(min-width: 960px)"); // where the theme shows the side bar beside the article

  // The theme binds only the first button of each kind, which is in its hidden header; the others pass clicks on.
  for (const [kind, name] of [["primary", "Contents of the book"], ["secondary", "On this page"]]) {
    const sidebar = document.getElementById(`pst-${kind}-sidebar`);
    const dialog = document.getElementById(`pst-${kind}-sidebar-modal`);
    const [bound, ...buttons] = all(`.${kind}-toggle`);
    for (const button of buttons) {
      button.title = name; // the theme makes a tooltip of it
      button.setAttribute("aria-label", name);
      // The theme gives it the focus back; the page would scroll to where it stood before it stuck to the top.
      button.focus = () => HTMLElement.prototype.focus.call(button, { preventScroll: true });
      button.addEventListener("click", () => {
        if (kind === "primary" && wide.matches) sidebar.classList.toggle("pst-sidebar-hidden");
        else bound.click();
      });
    }
    if (!dialog) continue;
    dialog.setAttribute("aria-label", name);

    // The theme moves what is in the side bar into the dialog and back.
    const close = document.createElement("button");
    close.className = "close-sidebar";
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    sidebar.prepend(close);

    // A link of the dialog leaves it. One to a section takes the focus there, after the theme has given it back.
    dialog.addEventListener("click", event => {
      const link = event.target.closest("a");
      if (!link || !dialog.open) return;
      const section = document.getElementById(decodeURIComponent(link.hash.slice(1)));
      if (section) {
        section.tabIndex = -1;
        dialog.addEventListener("close", () => section.focus({ preventScroll: true }), { once: true });
      }
      dialog.close();
    });
  }

  // The theme takes the focus from a button that was pressed; whoever pressed it with a key wants it back.
  document.addEventListener("DOMContentLoaded", () => {
    for (const button of all(".theme-switch-button, .search-button"))
      button.addEventListener("click", event => event.detail || button.focus(), true);
  });

  // The buttons that copy code have only an icon. Tab reaches one from its own code or fold, and else passes it by.
  document.addEventListener("DOMContentLoaded", () => {
    for (const button of all(".copybtn")) {
      button.setAttribute("aria-label", "Copy this code");
      button.tabIndex = -1;
      const code = button.closest("details") ?? button.closest(".highlight");
      code.addEventListener("focusin", () => (button.tabIndex = 0));
      code.addEventListener("focusout", event => code.contains(event.relatedTarget) || (button.tabIndex = -1));
    }
  });

  // A fold is named by what it hides, shut and open; its label said "Toggle hidden content".
  for (const summary of all("details.hide > summary")) {
    summary.removeAttribute("aria-label");
    const [shut, open] = ["collapsed", "expanded"].map(state => summary.querySelector(`.${state}`));
    open.textContent = shut.textContent.replace(/^Show/, "Hide");
  }

  // A button is named by the words that are seen on it: the keys of the search too, but no hidden icon's title.
  for (const button of all(".search-button-field")) button.removeAttribute("aria-label");
  for (const icon of all(".theme-switch")) icon.removeAttribute("title");

  // An arrow of the side bar is named by the page whose sections it shows.
  for (const summary of all(".bd-sidebar-primary details > summary"))
    summary.setAttribute("aria-label", `Pages below ${summary.closest("li").querySelector("a").textContent.trim()}`);

  // Roles: the side bar is a landmark, the bibliography's list has items, and an empty corner heads nothing.
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "complementary");
  sidebar?.setAttribute("aria-label", "The book");
  for (const entry of all("[role=doc-biblioentry]")) entry.setAttribute("role", "listitem");
  for (const corner of all("th").filter(cell => !cell.textContent.trim() && !cell.querySelector("img, svg")))
    corner.setAttribute("role", "cell");

  // Edges behind which there is more fade, as book.css draws them: data-more holds "left", "right" or both.
  const cue = box => {
    const hidden = box.scrollWidth - box.clientWidth;
    const left = box.scrollLeft > 1;
    const right = hidden - box.scrollLeft > 1;
    box.dataset.more = `${left ? "left" : ""} ${right ? "right" : ""}`.trim();
  };
  const watch = new ResizeObserver(changes => changes.forEach(change => cue(change.target)));
  const follow = box => {
    watch.observe(box);
    box.addEventListener("scroll", () => cue(box), { passive: true });
  };
  all("article pre, article .cell_output > .output, .pst-scrollable-table-container").forEach(follow);
  window.MathJax?.startup?.promise.then(() => all("div.math mjx-container").forEach(follow));
}
