#!/usr/bin/env bash
# A real HDFS (Hadoop 2.7.4: NameNode, DataNodes, WebHDFS) on loopback from packages only: the server's jars travel in the
# source archive of PyPI's pyspark 3.0.0, the old Jersey 1 in Debian. Needs Java 11 or 17 and apt; downloads some 230 MB once.
#
#   hdfs.sh install HOME                   fetch the jars into HOME, all or nothing
#   hdfs.sh format HOME RUN PORT           make an empty file system in RUN
#   hdfs.sh namenode HOME RUN PORT         run in the foreground; HTTP on PORT, RPC on PORT+1
#   hdfs.sh datanode HOME RUN PORT INDEX   run in the foreground; INDEX from 1, three ports from PORT+10+3*INDEX
set -euo pipefail

prop() { printf '<property><name>%s</name><value>%s</value></property>\n' "$1" "$2"; }

# Writes the configuration of one daemon. Its own temporary directory keeps daemons of one machine apart.
configure() {
  local conf=$1 index=$2
  mkdir -p "$conf"
  {
    echo '<configuration>'
    prop fs.defaultFS "hdfs://127.0.0.1:$((port + 1))"
    prop hadoop.tmp.dir "$run/tmp-$index"
    prop hadoop.http.staticuser.user foremount
    echo '</configuration>'
  } > "$conf/core-site.xml"
  {
    echo '<configuration>'
    prop dfs.namenode.name.dir "file://$run/name"
    prop dfs.namenode.http-address "127.0.0.1:$port"
    prop dfs.namenode.rpc-address "127.0.0.1:$((port + 1))"
    prop dfs.namenode.safemode.extension 0
    prop dfs.namenode.datanode.registration.ip-hostname-check false
    prop dfs.namenode.fs-limits.min-block-size 1048576
    prop dfs.datanode.data.dir "file://$run/data-$index"
    prop dfs.datanode.address "127.0.0.1:$((port + 10 + index * 3))"
    prop dfs.datanode.http.address "127.0.0.1:$((port + 11 + index * 3))"
    prop dfs.datanode.ipc.address "127.0.0.1:$((port + 12 + index * 3))"
    prop dfs.datanode.hostname 127.0.0.1
    prop dfs.client.use.datanode.hostname true
    prop dfs.blocksize "${HDFS_BLOCK_BYTES:-16777216}"
    prop dfs.replication 1
    prop dfs.webhdfs.enabled true
    prop dfs.permissions.enabled true
    prop dfs.permissions.superusergroup "$(id -gn)"
    echo '</configuration>'
  } > "$conf/hdfs-site.xml"
  cat > "$conf/log4j.properties" << 'LOG'
log4j.rootLogger=WARN,A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d %p %c: %m%n
LOG
}

# Hadoop 2.7 reflects into packages that Java 11 and later keep closed.
jvm() {
  local conf=$1 opens=() package
  shift
  for package in java.lang java.nio sun.nio.ch java.net; do opens+=(--add-opens "java.base/$package=ALL-UNNAMED"); done
  opens+=(--add-opens java.security.jgss/sun.security.krb5=ALL-UNNAMED)
  opens+=(--add-exports java.security.jgss/sun.security.krb5=ALL-UNNAMED)
  exec java "${opens[@]}" -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -cp "$conf:$home/webroot:$home/lib/*" "$@"
}

install_jars() {
  local new=$home.new jar
  rm -rf "$new"
  mkdir -p "$new/lib" "$new/dl" "$new/x" "$new"/webroot/webapps/{hdfs,datanode,secondary,static}
  "${PYTHON:-python3}" -m pip download -q --no-deps --no-binary :all: -d "$new/dl" pyspark==3.0.0
  tar -xzf "$new/dl/pyspark-3.0.0.tar.gz" -C "$new/x" --wildcards --strip-components=3 'pyspark-3.0.0/deps/jars/*'
  for jar in activation-1 apacheds- api-asn1 api-util avro-1 commons- curator- gson guava-14 hadoop-annotations hadoop-auth \
    hadoop-common hadoop-hdfs htrace httpclient httpcore istack jackson-core-asl jackson-jaxrs jackson-mapper-asl jackson-xc \
    javax.servlet-api-3 jaxb-api-2 jaxb-runtime jetty-6 jetty-sslengine jetty-util jsr305 leveldbjni log4j-1 netty-all \
    paranamer protobuf-java-2 slf4j snappy-java stax-api xercesImpl xmlenc zookeeper; do
    cp "$new"/x/"$jar"*.jar "$new/lib/"
  done
  (cd "$new/dl" && apt-get download -qq libjersey1-core-java libjersey1-server-java libjersey1-servlet-java libjsr311-api-java \
    libasm-java libjsp-api-java)
  for jar in "$new"/dl/*.deb; do dpkg -x "$jar" "$new/x"; done
  find "$new/x/usr" \( -name 'jersey1-core-1*.jar' -o -name 'jersey1-server-1*.jar' -o -name 'jersey1-servlet-1*.jar' \
    -o -name 'jsr311-api*.jar' -o -name 'asm.jar' -o -name 'asm-9*.jar' -o -name 'jsp-api*.jar' \) \
    -exec cp -L {} "$new/lib/" \; 2> /dev/null || true
  rm -rf "$new/x" "$new/dl"
  mv "$new" "$home"
}

command=${1:-} home=${2:-} run=${3:-} port=${4:-0} index=${5:-0}
case $command in
  install) [ -e "$home/lib" ] || install_jars ;;
  format)
    configure "$run/conf-0" 0
    jvm "$run/conf-0" org.apache.hadoop.hdfs.server.namenode.NameNode -format -nonInteractive
    ;;
  namenode) jvm "$run/conf-0" org.apache.hadoop.hdfs.server.namenode.NameNode ;;
  datanode)
    configure "$run/conf-$index" "$index"
    jvm "$run/conf-$index" org.apache.hadoop.hdfs.server.datanode.DataNode
    ;;
  *)
    sed -n 2,9p "$0"
    exit 2
    ;;
esac
