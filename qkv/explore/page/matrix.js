// Small arithmetic on attention matrices.
// In: weights between pieces. Out: weights between whole words.
// What the pieces of a word look at is averaged, what is looked at is summed: a row still sums to one.

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
