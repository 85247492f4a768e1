// Node.js (libuv) at both ends: `node sockets.js serve` returns what arrives, and copies of this file by HTTP. `node sockets.js call`
// compares what comes back. Files are read while sockets are closed: they get the sockets' numbers.
const crypto = require('crypto')
const fs = require('fs')
const http = require('http')
const net = require('net')

const ADDRESS = '127.0.0.1'
const ECHO_PORT = 9003
const PAGE_PORT = 9004
const FILE = fs.readFileSync(__filename)
const PAGE = pageOf(FILE)

// More than a socket's buffers take at once.
function pageOf(file) {
	return Buffer.concat(Array(50).fill(file))
}

function serve() {
	const echo = net.createServer({ allowHalfOpen: true }, (socket) => {
		socket.pipe(socket)
		socket.on('error', () => socket.destroy())
	})
	const answer = (request, response) => {
		if (request.url === '/connections') echo.getConnections((error, count) => response.end(`${count}`))
		else fs.readFile(__filename, (error, file) => response.end(error ? `${error}` : pageOf(file)))
	}
	http.createServer(answer).listen(PAGE_PORT, ADDRESS, () => echo.listen(ECHO_PORT, ADDRESS))
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

function abandoned() {
	return new Promise((resolve, reject) => {
		const socket = net.connect(ECHO_PORT, ADDRESS, () => socket.write('x'))
		socket.on('data', () => {
			socket.destroy()
			resolve()
		})
		socket.on('error', reject)
	})
}

function get(path, agent) {
	return new Promise((resolve, reject) => {
		const request = http.get({ host: ADDRESS, port: PAGE_PORT, path, agent }, (response) => {
			const parts = []
			response.on('data', (part) => parts.push(part))
			response.on('end', () => resolve(Buffer.concat(parts)))
		})
		request.on('error', reject)
	})
}

async function page(agent) {
	const got = await get('/', agent)
	if (!got.equals(PAGE)) throw new Error('another page')
	if (!fs.readFileSync(__filename).equals(FILE)) throw new Error('another file')
}

async function noConnectionIsLeft() {
	for (let left = 100; left > 0; left--) {
		if (`${await get('/connections', false)}` === '0') return
		await new Promise((resolve) => setTimeout(resolve, 50))
	}
	throw new Error('the server has connections that the client has closed')
}

async function call() {
	await Promise.all(Array.from({ length: 50 }, echoed))
	const agent = new http.Agent({ keepAlive: true, maxSockets: 10 })
	await Promise.all(Array.from({ length: 200 }, () => page(agent)))
	agent.destroy()
	await Promise.all(Array.from({ length: 100 }, () => page(false)))
	await Promise.all(Array.from({ length: 20 }, abandoned))
	await noConnectionIsLeft()
	console.log('the data are right')
}

if (process.argv[2] === 'serve') serve()
else call()
