// The person's language and colours.
// In: the last visit, the system, the server. Out: html[lang] and html[data-theme], and two switches.
// What is chosen is remembered, where the browser lets us.

import { choices } from "./controls.js";
import { t, setLanguage, currentLanguage } from "./words.js";
import { theme } from "./colours.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");

// Colours follow the system until the person chooses.
export function asTheSystem(redraw) {
  const follow = () => {
    document.documentElement.dataset.theme = recall("theme") ?? (DARK.matches ? "dark" : "light");
  };
  setLanguage(recall("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  follow();
  DARK.addEventListener("change", () => {
    follow();
    redraw();
  });
}

// Whoever runs the server in Chinese sees the page in Chinese.
export function asTheServer(language) {
  if (!recall("language") && language === "zh") setLanguage("zh");
}

export function languageSwitch(redraw) {
  return choices([["en", "EN"], ["zh", "中文"]], currentLanguage(), t("language"), (chosen) => {
    keep("language", chosen);
    setLanguage(chosen);
    redraw();
    document.querySelector(`[data-choice="${chosen}"]`).focus();
  });
}

export function themeSwitch(refresh) {
  return choices([["light", t("light")], ["dark", t("dark")]], theme(), t("theme"), (chosen) => {
    keep("theme", chosen);
    document.documentElement.dataset.theme = chosen;
    refresh();
  });
}

// A page that may not keep anything (a private window) simply forgets.
function recall(name) {
  try { return localStorage.getItem(`qkv-${name}`); } catch { return null; }
}

function keep(name, value) {
  try { localStorage.setItem(`qkv-${name}`, value); } catch { /* forgets */ }
}
