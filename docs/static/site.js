// What scrolls by itself can be scrolled with the keyboard, too.
addEventListener("load", () => {
  for (const box of document.querySelectorAll(".content pre, .content table"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});
