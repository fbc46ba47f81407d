// A guest of componentize-js without any option, in the published world `task-handler`, without helpers.
//
// It returns what the engine offers. With the field `end` it throws an error.

export const handler = {
  async handle(task) {
    if (task.fields.some((field) => field.name === 'end')) throw new TypeError('boom in JavaScript');
    console.log('printed in JavaScript');
    const began = Date.now();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const found = { seconds: began / 1000, slept: (Date.now() - began) / 1000, fetch: typeof fetch };
    const drawn = { uuid: crypto.randomUUID(), random: Math.random() };
    return new TextEncoder().encode(JSON.stringify({ ...found, ...drawn }));
  },
};
