// Attention weights between words from those between tokens.
// Sum over the keys of a word, mean over its queries.
// So each row still sums to one.

// words: [{ text, tokens: [0, 1] }, ...] for the rows and for the columns
export function mergeWords({ values, columns }, rowWords, columnWords) {
  const merged = new Float32Array(rowWords.length * columnWords.length);
  rowWords.forEach(({ tokens: queries }, row) => columnWords.forEach(({ tokens: keys }, column) => {
    let sum = 0;
    for (const query of queries) for (const key of keys) sum += values[query * columns + key];
    merged[row * columnWords.length + column] = sum / queries.length;
  }));
  return { values: merged, rows: rowWords.length, columns: columnWords.length,
    rowNames: rowWords.map(({ text }) => text), columnNames: columnWords.map(({ text }) => text) };
}
