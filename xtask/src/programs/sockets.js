// Node.js (libuv) at both ends: `node sockets.js serve` returns what arrives, and pages by HTTP. `node sockets.js call` compares
// what comes back.
const crypto = require('crypto')
const http = require('http')
const net = require('net')

const ADDRESS = '127.0.0.1'
const ECHO_PORT = 9003
const PAGE_PORT = 9004
const PAGE = Buffer.alloc(100000, 'page ')

function serve() {
	http.createServer((request, response) => response.end(PAGE)).listen(PAGE_PORT, ADDRESS, () => {
		net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(ECHO_PORT, ADDRESS)
	})
}

function echoed() {
	return new Promise((resolve, reject) => {
		const data = crypto.randomBytes(300000)
		const back = []
		const socket = net.connect(ECHO_PORT, ADDRESS, () => socket.end(data))
		socket.on('data', (part) => back.push(part))
		socket.on('end', () => (Buffer.concat(back).equals(data) ? resolve() : reject(new Error('other data'))))
		socket.on('error', reject)
	})
}

function page(agent) {
	return new Promise((resolve, reject) => {
		const request = http.get({ host: ADDRESS, port: PAGE_PORT, agent }, (response) => {
			const parts = []
			response.on('data', (part) => parts.push(part))
			response.on('end', () => (Buffer.concat(parts).equals(PAGE) ? resolve() : reject(new Error('another page'))))
		})
		request.on('error', reject)
	})
}

async function call() {
	await Promise.all(Array.from({ length: 50 }, echoed))
	const agent = new http.Agent({ keepAlive: true, maxSockets: 10 })
	await Promise.all(Array.from({ length: 200 }, () => page(agent)))
	agent.destroy()
	console.log('the data are right')
}

if (process.argv[2] === 'serve') serve()
else call()
