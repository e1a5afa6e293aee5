// Asks the worker of the site's search, which runs here as a part of the page, and writes the hits of each query.
let answer;
addEventListener = (_, handler) => (answer = handler);
const ask = async (type, data) => {
  let given;
  postMessage = (message) => (given = message.data);
  await answer({ data: { type, data } });
  return given;
};
const hits = async ({ index, queries }) => {
  const found = {};
  await ask(0, { ...index, options: { suggest: true } });
  for (const query of queries) found[query] = (await ask(2, query)).items.map((page) => page.map((item) => item.location));
  return found;
};
