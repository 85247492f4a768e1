#!/bin/sh
# Either end of a socket program that needs files or several commands: sh sockets.sh ROLE [ARGUMENT]. Run it under
# `portolan exec --sockets`, which its commands inherit. Prints "the data are right" last if the data are right.
set -eu
here=$(dirname "$0")
address=127.0.0.1
# Shared by the server and its client, which run in one network namespace.
folder=/tmp/portolan-sockets-$(readlink /proc/self/ns/net | tr -dc 0-9)-${1#*-}

fresh() {
	rm -rf "$folder"
	mkdir -p "$folder"
}

file() {
	head -c 20000000 /dev/urandom > "$folder/file"
}

# Whether this is the namespace of an ordinary user. It has only one user, whose groups no program may change.
is_ordinary() {
	[ "$(cat /proc/self/setgroups)" = deny ]
}

# Becomes a program of another user: become USER PROGRAM. In an ordinary user's namespace it is the same user by that name.
become() {
	user=$1
	shift
	if is_ordinary; then
		exec unshare --user --map-user="$(id -u "$user")" --map-group="$(id -g "$user")" "$@"
	fi
	exec setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}

# The user of servers that would change their groups as root: who the user is outside the namespace.
user_of_servers() {
	id -nu "$(awk '{ print $2 }' /proc/self/uid_map)"
}

same() {
	cmp "$folder/file" "$1"
	echo 'the data are right'
}

case $1 in
serve-* | asyncio | node | prefork) ;;
# Only the client cleans up: it ends before the server.
*) trap 'rm -rf "$folder"' EXIT ;;
esac

case $1 in
serve-http)
	fresh
	file
	exec python3 -m http.server 8000 --bind $address --directory "$folder"
	;;
get-http)
	curl --silent --fail --max-time 60 --output "$folder/copy" http://$address:8000/file
	same "$folder/copy"
	;;
serve-nginx | serve-nginx-workers)
	workers=1
	[ "$1" = serve-nginx ] || workers=2
	fresh
	file
	head -c 10000 "$folder/file" > "$folder/small"
	chmod -R a+rX "$folder"
	cat > "$folder/conf" <<-EOF
		daemon off; pid $folder/pid; error_log $folder/errors; worker_processes $workers; user root;
		events { worker_connections 500; }
		http {
			access_log off; sendfile on;
			client_body_temp_path $folder/body; proxy_temp_path $folder/proxy; fastcgi_temp_path $folder/fastcgi;
			uwsgi_temp_path $folder/uwsgi; scgi_temp_path $folder/scgi;
			server { listen $address:8080; root $folder; }
		}
	EOF
	# nginx's workers outlive a killed master, so kill the whole process group.
	setsid /usr/sbin/nginx -c "$folder/conf" &
	tail --pid=$$ -f /dev/null && kill -- -$! 2> /dev/null &
	wait
	;;
get-nginx | get-nginx-workers)
	curl --silent --fail --max-time 60 --output "$folder/copy" http://$address:8080/file
	same "$folder/copy"
	;;
load-nginx | load-nginx-workers)
	# ab counts what has another length as failed, but not a page of an error.
	for how in '-n 500 -c 10' '-k -n 5000 -c 50'; do
		ab -q $how http://$address:8080/small > "$folder/said"
		cat "$folder/said"
		if grep Non-2xx "$folder/said"; then exit 1; fi
	done
	;;
serve-redis)
	fresh
	exec redis-server --port 6379 --bind $address --save 3600 1 --dir "$folder"
	;;
values-redis)
	file
	head -c 3000000 "$folder/file" | base64 -w 0 > "$folder/value"
	redis-cli -p 6379 -x set key < "$folder/value" > /dev/null
	redis-cli -p 6379 get key | tr -d '\n' > "$folder/file.got"
	cmp "$folder/value" "$folder/file.got"
	redis-cli -p 6379 bgsave
	redis-benchmark -p 6379 -q -n 5000 -c 50 -t set,get,lrange_100
	echo 'the data are right'
	;;
serve-rsync)
	fresh
	mkdir "$folder/tree" "$folder/copies"
	file
	for count in $(seq 40); do
		head -c $((count * 1000)) "$folder/file" > "$folder/tree/$count"
	done
	mv "$folder/file" "$folder/tree/"
	is_ordinary || printf 'uid = root\ngid = root\n' > "$folder/conf"
	cat >> "$folder/conf" <<-EOF
		use chroot = no
		[tree]
		path = $folder/tree
		[copies]
		path = $folder/copies
		read only = no
	EOF
	become "$(user_of_servers)" rsync --daemon --no-detach --address $address --port 8730 --config "$folder/conf"
	;;
copy-rsync)
	mkdir "$folder/got"
	rsync --archive --no-owner --no-group --timeout 60 rsync://$address:8730/tree/ "$folder/got/"
	diff -r "$folder/tree" "$folder/got"
	rsync --archive --no-owner --no-group --timeout 60 "$folder/got/" rsync://$address:8730/copies/
	diff -r "$folder/tree" "$folder/copies"
	echo 'the data are right'
	;;
serve-postgres)
	fresh
	is_ordinary || chown postgres "$folder"
	programs=$(dirname "$(ls /usr/lib/postgresql/*/bin/initdb | tail -1)")
	(become postgres "$programs/initdb" -D "$folder/data" -A trust) > "$folder/initdb" 2>&1
	become postgres "$programs/postgres" -D "$folder/data" -h $address -k "$folder"
	;;
load-postgres)
	cd /
	for _ in $(seq 100); do
		(
			export PORTOLAN_SOCKETS_TIMEOUT_MS=1000
			become postgres timeout 10 psql -h $address -Atc "select 1" postgres
		) > /dev/null 2>&1 && break
		sleep 0.1
	done
	(become postgres pgbench -h $address -i -q -s 1 postgres)
	(become postgres pgbench -h $address -c 4 -t 50 postgres)
	sum=$(become postgres psql -h $address -At postgres -c 'select (select sum(abalance) from pgbench_accounts) =
		(select sum(delta) from pgbench_history), count(*) from pgbench_history')
	[ "$sum" = 't|200' ] && echo 'the data are right'
	;;
serve-ssh)
	fresh
	is_ordinary || mkdir -p /run/sshd
	file
	ssh-keygen -q -t ed25519 -N '' -f "$folder/host"
	ssh-keygen -q -t ed25519 -N '' -f "$folder/user"
	become "$(user_of_servers)" /usr/sbin/sshd -D -e -f /dev/null -p 2222 -h "$folder/host" -o ListenAddress=$address -o StrictModes=no \
		-o AuthorizedKeysFile="$folder/user.pub" -o PidFile=none -o PermitRootLogin=yes -o "Subsystem=sftp internal-sftp"
	;;
copy-ssh)
	scp -q -P 2222 -i "$folder/user" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30 \
		"$folder/file" "$(user_of_servers)@$address:$folder/copy"
	same "$folder/copy"
	;;
serve-nc)
	fresh
	exec nc -N -l $address 7000 > "$folder/copy"
	;;
send-nc)
	file
	nc -N $address 7000 < "$folder/file"
	for _ in $(seq 100); do
		cmp -s "$folder/file" "$folder/copy" && break
		sleep 0.1
	done
	same "$folder/copy"
	;;
echo-socat)
	mkdir -p "$folder"
	file
	socat -t 30 - TCP:$address:7001 < "$folder/file" > "$folder/copy"
	same "$folder/copy"
	;;
serve-asio)
	fresh
	g++ -std=c++17 -O1 -o "$folder/asio" "$here/asio.cpp"
	exec "$folder/asio" serve 9001
	;;
call-asio)
	exec "$folder/asio" call 9001
	;;
prefork)
	exec python3 "$here/prefork.py" "$2" 9002
	;;
node)
	exec node "$here/sockets.js" "$2"
	;;
asyncio)
	exec python3 "$here/sockets.py" "$2"
	;;
*)
	echo "no role $1" >&2
	exit 2
	;;
esac
