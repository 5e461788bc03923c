// Language and color theme.
// Defaults come from the system and the server; the user's choice is kept in localStorage.
// The settings are html[lang] and html[data-theme].

import { choices } from "./controls.js";
import { t, setLanguage, currentLanguage } from "./words.js";
import { theme } from "./colors.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");

// The theme follows the system until the user selects one.
export function applySystemSettings(redraw) {
  const apply = () => {
    document.documentElement.dataset.theme = load("theme") ?? (DARK.matches ? "dark" : "light");
  };
  setLanguage(load("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  apply();
  DARK.addEventListener("change", () => {
    apply();
    redraw();
  });
}

// If the server runs in Chinese, the page is in Chinese.
export function applyServerLanguage(language) {
  if (!load("language") && language === "zh") setLanguage("zh");
}

export function languageSwitch(redraw) {
  return choices([["en", "EN"], ["zh", "中文"]], currentLanguage(), t("language"), (chosen) => {
    store("language", chosen);
    setLanguage(chosen);
    redraw();
    document.querySelector(`[data-choice="${chosen}"]`).focus();
  });
}

export function themeSwitch(refresh) {
  return choices([["light", t("light")], ["dark", t("dark")]], theme(), t("theme"), (chosen) => {
    store("theme", chosen);
    document.documentElement.dataset.theme = chosen;
    refresh();
  });
}

// localStorage may be unavailable, for example in a private window; then nothing is stored.
function load(name) {
  try { return localStorage.getItem(`qkv-${name}`); } catch { return null; }
}

function store(name, value) {
  try { localStorage.setItem(`qkv-${name}`, value); } catch { /* not stored */ }
}
