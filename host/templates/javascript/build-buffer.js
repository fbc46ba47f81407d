// For build.js: a file that mentions `Buffer` gets that of the package.
export { Buffer } from 'buffer';
